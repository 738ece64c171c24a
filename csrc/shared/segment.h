// The memory in which one rank receives: a header, then a ring from each rank of its host.
//
//     | magic, token, sizes | bell, asleep, closed | ring from 0 | ring from 1 | ...
//
// It has no name: the owner makes it with memfd_create, the others open it through the owner's /proc entry and know
// it by its token. It is gone when the last of them has let go, however they end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ring.h"

namespace overlap::shared {

// Where a segment can be opened on this host, and what must be found there.
struct Address {
    std::int64_t pid = 0, fd = 0, token = 0;
};

class Segment {
  public:
    struct Header {
        std::uint64_t magic;
        std::int64_t token;
        std::uint64_t ranks, capacity;
        alignas(kLine) std::atomic<std::uint32_t> bell;  // rung whenever something has changed for the owner
        std::atomic<std::uint32_t> asleep;               // whether the owner waits for it
        std::atomic<std::uint32_t> closed;               // the owner neither sends nor receives any more
    };

    // A rank's own; throws std::system_error where the system refuses.
    static std::unique_ptr<Segment> create(int ranks, std::size_t capacity);

    // Another's; null where it cannot be opened, or is not what the address says.
    static std::unique_ptr<Segment> open(const Address& address, int ranks, std::size_t capacity);

    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment();

    // Whether this process has it, and is not a fork of the one that has.
    bool here() const;
    Address address() const { return address_; }
    std::size_t size() const { return size_; }
    std::size_t capacity() const { return static_cast<std::size_t>(header_->capacity); }  // of a ring
    Ring ring_from(int rank) const;

    // Wakes the owner if it sleeps.
    void ring_bell();
    std::uint32_t bell() const { return header_->bell.load(); }
    // Sleeps until the bell is no longer `heard`, or for `milliseconds`. For the owner.
    void sleep(std::uint32_t heard, int milliseconds);
    void set_asleep(bool value) { header_->asleep.store(value ? 1 : 0); }

    bool closed() const { return header_->closed.load() != 0; }
    void close() { header_->closed.store(1); }

  private:
    Segment(void* memory, std::size_t size, int fd, Address address);

    Header* header_;
    std::size_t size_;
    int fd_;  // of a rank's own, as long as others may open it; else -1
    int mapped_by_;
    Address address_;
};

}  // namespace overlap::shared
