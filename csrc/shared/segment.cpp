#include "segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>
#include <string>
#include <system_error>

namespace overlap::shared {
namespace {

constexpr std::uint64_t kMagic = 0x6f7665726c617031;  // "overlap1": the layout of this file

constexpr std::size_t rounded(std::size_t size) { return (size + kLine - 1) / kLine * kLine; }

std::size_t size_of_segment(int ranks, std::size_t capacity) {
    return rounded(sizeof(Segment::Header)) + static_cast<std::size_t>(ranks) * Ring::size_in_memory(capacity);
}

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void* map(int fd, std::size_t size) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    // A forked child, say a worker that loads data, has no part in what its parent exchanges.
    if (memory != MAP_FAILED) madvise(memory, size, MADV_DONTFORK);
    return memory;
}

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
    // Not the private kind: the other side is another process.
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

std::unique_ptr<Segment> Segment::create(int ranks, std::size_t capacity) {
    const int fd = static_cast<int>(syscall(SYS_memfd_create, "overlap", 1U /* MFD_CLOEXEC */));
    if (fd < 0) fail("memfd_create");
    const std::size_t size = size_of_segment(ranks, capacity);
    void* memory = ftruncate(fd, static_cast<off_t>(size)) == 0 ? map(fd, size) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        const int error = errno;
        ::close(fd);
        errno = error;
        fail("memory shared between ranks");
    }
    auto* header = static_cast<Header*>(memory);  // zeros: empty rings, a silent bell
    if (getrandom(&header->token, sizeof header->token, 0) != sizeof header->token) header->token = size;
    header->ranks = static_cast<std::uint64_t>(ranks);
    header->capacity = capacity;
    header->magic = kMagic;
    return std::unique_ptr<Segment>(new Segment(memory, size, fd, {getpid(), fd, header->token}));
}

std::unique_ptr<Segment> Segment::open(const Address& address, int ranks, std::size_t capacity) {
    const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    const std::size_t size = size_of_segment(ranks, capacity);
    struct stat status;
    const bool fits = fstat(fd, &status) == 0 && static_cast<std::size_t>(status.st_size) == size;
    void* memory = fits ? map(fd, size) : MAP_FAILED;
    ::close(fd);
    if (memory == MAP_FAILED) return nullptr;
    std::unique_ptr<Segment> segment(new Segment(memory, size, -1, address));
    const Header& header = *segment->header_;
    const bool known = header.magic == kMagic && header.token == address.token && header.capacity == capacity &&
                       header.ranks == static_cast<std::uint64_t>(ranks);
    return known ? std::move(segment) : nullptr;
}

Segment::Segment(void* memory, std::size_t size, int fd, Address address)
    : header_(static_cast<Header*>(memory)), size_(size), fd_(fd), mapped_by_(getpid()), address_(address) {}

Segment::~Segment() {
    if (here()) munmap(header_, size_);
    if (fd_ >= 0) ::close(fd_);
}

bool Segment::here() const { return getpid() == mapped_by_; }

Ring Segment::ring_from(int rank) const {
    const std::size_t capacity = static_cast<std::size_t>(header_->capacity);
    auto* start = reinterpret_cast<std::byte*>(header_) + rounded(sizeof(Header)) +
                  static_cast<std::size_t>(rank) * Ring::size_in_memory(capacity);
    return {reinterpret_cast<Ring::Counters*>(start), start + sizeof(Ring::Counters), capacity};
}

void Segment::ring_bell() {
    header_->bell.fetch_add(1);
    if (header_->asleep.load() != 0) futex(&header_->bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void Segment::sleep(std::uint32_t heard, int milliseconds) {
    const timespec timeout{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
    futex(&header_->bell, FUTEX_WAIT, heard, &timeout);
}

}  // namespace overlap::shared
