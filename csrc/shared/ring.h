// Bytes from one process to another through memory that both have mapped: one producer, one consumer.
//
//     written   |################........|    head: bytes ever written   (the producer's)
//     read      |####....................|    tail: bytes ever read      (the consumer's)
//
// Each side moves its own counter after the bytes, so that the other never sees a byte too early. Nobody waits here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace overlap::shared {

inline constexpr std::size_t kLine = 64;

class Ring {
  public:
    // Counters of their own cache lines: each is written by one side and polled by the other.
    struct Counters {
        alignas(kLine) std::atomic<std::uint64_t> head;
        alignas(kLine) std::atomic<std::uint64_t> tail;
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

    Ring() = default;
    Ring(Counters* counters, std::byte* data, std::size_t capacity)
        : counters_(counters), data_(data), capacity_(capacity) {}

    static constexpr std::size_t size_in_memory(std::size_t capacity) { return sizeof(Counters) + capacity; }

    // Bytes that can be written now.
    std::size_t room() const {
        return capacity_ - static_cast<std::size_t>(counters_->head.load(std::memory_order_relaxed) -
                                                    counters_->tail.load(std::memory_order_acquire));
    }

    bool empty() const { return room() == capacity_; }

    // Copies up to `size` bytes in; how many there was room for.
    std::size_t write(const void* bytes, std::size_t size) {
        const std::uint64_t head = counters_->head.load(std::memory_order_relaxed);
        size = std::min(size, room());
        const std::size_t at = head % capacity_, straight = std::min(size, capacity_ - at);
        std::memcpy(data_ + at, bytes, straight);
        std::memcpy(data_, static_cast<const std::byte*>(bytes) + straight, size - straight);
        counters_->head.store(head + size, std::memory_order_release);
        return size;
    }

    // Copies up to `size` bytes out; how many there were.
    std::size_t read(void* bytes, std::size_t size) {
        size = peek(bytes, size);
        counters_->tail.fetch_add(size, std::memory_order_release);
        return size;
    }

    // As read, but the bytes stay.
    std::size_t peek(void* bytes, std::size_t size) const {
        const std::uint64_t tail = counters_->tail.load(std::memory_order_relaxed);
        const std::uint64_t head = counters_->head.load(std::memory_order_acquire);
        size = std::min(size, static_cast<std::size_t>(head - tail));
        const std::size_t at = tail % capacity_, straight = std::min(size, capacity_ - at);
        std::memcpy(bytes, data_ + at, straight);
        std::memcpy(static_cast<std::byte*>(bytes) + straight, data_, size - straight);
        return size;
    }

  private:
    Counters* counters_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t capacity_ = 0;
};

}  // namespace overlap::shared
