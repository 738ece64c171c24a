#include "port.h"

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace overlap::shared {
namespace {

// Small enough that the receiver reads a slice from cache while the next one is written.
constexpr std::size_t kSlice = 64 << 10;
// Looks before sleep. A peer that computes has the core that a longer look would take.
constexpr int kLooks = 20;
constexpr int kNapMs = 50;

struct Frame {
    std::uint64_t tag, size;
};

int watch_process(std::int64_t pid) {
#ifdef SYS_pidfd_open
    return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U));
#else
    return -1;
#endif
}

bool has_ended(int process) {
    pollfd entry{process, POLLIN, 0};
    return process >= 0 && poll(&entry, 1, 0) == 1;
}

// The messages of one direction between two ranks, in order.
struct Line {
    std::vector<const Message*> messages;
    std::size_t current = 0, moved = 0;
    bool framed = false;  // the frame of the current message has been moved

    bool done() const { return current == messages.size(); }
    const Message& message() const { return *messages[current]; }
    std::byte* rest() const { return message().data + moved; }
    std::size_t slice() const { return std::min(kSlice, message().size - moved); }
    void move(std::size_t size) {
        moved += size;
        if (moved == message().size) *this = {std::move(messages), current + 1};
    }
};

}  // namespace

Port::Peer::~Peer() {
    if (process >= 0) ::close(process);
}

Port::Port(int ranks, int rank, std::size_t capacity)
    : rank_(rank), own_(Segment::create(ranks, capacity)), peers_(static_cast<std::size_t>(ranks)) {}

Port::~Port() { close(); }

bool Port::connect(int peer, const Address& address) {
    Peer& it = peers_[static_cast<std::size_t>(peer)];
    it.segment = Segment::open(address, static_cast<int>(peers_.size()), own_->capacity());
    if (!it.segment) return false;
    it.out = it.segment->ring_from(rank_);
    it.in = own_->ring_from(peer);
    it.process = watch_process(address.pid);
    return true;
}

void Port::interrupt() {
    interrupted_ = true;
    own_->ring_bell();
}

void Port::close() {
    if (!own_->here()) return;
    own_->close();
    for (Peer& peer : peers_) {
        if (peer.segment) peer.segment->ring_bell();
    }
}

// One exchange under way.
class Port::Traffic {
  public:
    Traffic(Port& port, const std::vector<Message>& receives, const std::vector<Message>& sends, double patience_s)
        : port_(port), in_(port.peers_.size()), out_(port.peers_.size()), troubles_(port.peers_.size()),
          patience_(patience_s), last_(Clock::now()) {
        for (const Message& message : receives) in_[index(message)].messages.push_back(&message);
        for (const Message& message : sends) out_[index(message)].messages.push_back(&message);
    }

    std::vector<Trouble> run() {
        int looks = 0;
        while (!ended()) {
            const std::uint32_t heard = port_.own_->bell();
            if (advance()) {
                looks = 0;
                last_ = Clock::now();
            } else if (++looks < kLooks) {
                sched_yield();
            } else {
                wait(heard);
            }
        }
        return troubles_;
    }

  private:
    using Clock = std::chrono::steady_clock;

    static std::size_t index(const Message& message) { return static_cast<std::size_t>(message.peer); }
    bool waits_for(std::size_t peer) const {
        // What has been sent must have been read, or a rank that only sends would not learn that nobody listens.
        const bool through = in_[peer].done() && out_[peer].done() &&
                             (out_[peer].messages.empty() || port_.peers_[peer].out.empty());
        return troubles_[peer] == Trouble::none && !through;
    }
    bool ended() const {
        for (std::size_t peer = 0; peer < in_.size(); ++peer) {
            if (waits_for(peer)) return false;
        }
        return true;
    }

    bool advance() {
        bool any = false;
        for (std::size_t peer = 0; peer < in_.size(); ++peer) {
            if (!waits_for(peer)) continue;
            const bool sent = send(out_[peer], port_.peers_[peer].out);
            const bool received = receive(in_[peer], port_.peers_[peer].in);
            if (sent || received) port_.peers_[peer].segment->ring_bell();
            any = any || sent || received;
        }
        return any;
    }

    static bool send(Line& line, Ring& ring) {
        if (line.done()) return false;
        if (!line.framed) {
            const Frame frame{line.message().tag, line.message().size};
            if (ring.room() < sizeof frame) return false;
            ring.write(&frame, sizeof frame);
            line.framed = true;
        }
        const std::size_t size = ring.write(line.rest(), line.slice());
        line.move(size);
        return size > 0;
    }

    static bool receive(Line& line, Ring& ring) {
        if (line.done()) return false;
        if (!line.framed) {
            Frame frame;
            if (ring.peek(&frame, sizeof frame) < sizeof frame) return false;
            // What was sent is not what is waited for: it stays, and patience ends as if nothing had come.
            if (frame.tag != line.message().tag || frame.size != line.message().size) return false;
            ring.read(&frame, sizeof frame);
            line.framed = true;
        }
        const std::size_t size = ring.read(line.rest(), line.slice());
        line.move(size);
        return size > 0;
    }

    void wait(std::uint32_t heard) {
        port_.own_->set_asleep(true);
        // What came before this rank was known to sleep has rung the bell, which is then no longer as heard.
        port_.own_->sleep(heard, kNapMs);
        port_.own_->set_asleep(false);
        look_for_trouble();
    }

    void look_for_trouble() {
        const bool late = std::chrono::duration<double>(Clock::now() - last_).count() > patience_;
        for (std::size_t peer = 0; peer < in_.size(); ++peer) {
            if (!waits_for(peer)) continue;
            // Closed or ended first, then a last look: what it sent before is still there.
            const bool closed = port_.peers_[peer].segment->closed(), gone = has_ended(port_.peers_[peer].process);
            if ((closed || gone) && !advance()) troubles_[peer] = gone ? Trouble::gone : Trouble::closed;
            if (late) troubles_[peer] = Trouble::late;
            if (port_.interrupted_) troubles_[peer] = Trouble::interrupted;
        }
    }

    Port& port_;
    std::vector<Line> in_, out_;
    std::vector<Trouble> troubles_;
    double patience_;
    Clock::time_point last_;
};

std::vector<Trouble> Port::exchange(const std::vector<Message>& receives, const std::vector<Message>& sends,
                                    double patience_s) {
    return Traffic(*this, receives, sends, patience_s).run();
}

}  // namespace overlap::shared
