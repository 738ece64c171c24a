// A rank's way to the other ranks of its host: full-duplex exchanges of messages through shared memory.
//
//     rank 0   send ->  [ring from 0 in 1's segment]  -> receive   rank 1
//           receive <-  [ring from 1 in 0's segment]  <- send
//
// One thread moves everything: a slice to each peer, a slice from each, and around again, so that both directions
// and all peers advance together and a message may be larger than its ring. With nothing to do it sleeps on its bell.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "segment.h"

namespace overlap::shared {

// One message to or from `peer`. It arrives only where the same tag and size are expected next.
struct Message {
    int peer = 0;
    std::uint64_t tag = 0;
    std::byte* data = nullptr;
    std::size_t size = 0;
};

enum class Trouble { none, late, gone, closed, interrupted };

class Port {
  public:
    // Memory for messages from `ranks` ranks of this host, of which this one is `rank`.
    Port(int ranks, int rank, std::size_t capacity);
    ~Port();

    Address address() const { return own_->address(); }
    std::size_t size() const { return own_->size(); }

    // Whether messages can go to a rank from now on, and come from it once it has connected, too.
    bool connect(int peer, const Address& address);

    // Moves all messages. A peer is in trouble if it does not let any advance for `patience_s` seconds, has ended, or
    // has closed its port. Returns what each rank is in trouble with; what came before trouble has been received.
    std::vector<Trouble> exchange(const std::vector<Message>& receives, const std::vector<Message>& sends,
                                  double patience_s);

    // Lets a running exchange end, from any thread; and every later one at once.
    void interrupt();

    // Tells the others that nothing more will be sent or received.
    void close();

  private:
    struct Peer {
        std::unique_ptr<Segment> segment;
        Ring out, in;
        int process = -1;  // a descriptor that becomes readable when it ends
        ~Peer();
    };
    class Traffic;

    int rank_;
    std::unique_ptr<Segment> own_;
    std::vector<Peer> peers_;
    std::atomic<bool> interrupted_{false};
};

}  // namespace overlap::shared
