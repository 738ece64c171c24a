#include "threads.h"

#include <pthread.h>
#include <signal.h>
#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace overlap {
namespace {

// How floats are computed is a state of each thread (flush-to-zero, say): workers take the caller's.
#ifdef __SSE__
unsigned int float_mode() { return _mm_getcsr(); }
void set_float_mode(unsigned int mode) { _mm_setcsr(mode); }
#else
unsigned int float_mode() { return 0; }
void set_float_mode(unsigned int) {}
#endif

// One call of parallel_for. Lives on the caller's stack until no worker holds it.
struct Job {
    RangeBody body;
    std::int64_t count, grain;
    int seats;        // workers that may still join; guarded by the pool's mutex
    int working = 0;  // workers that have joined and not left; likewise
    unsigned int mode = float_mode();
    std::atomic<std::int64_t> next{0};

    void run() {
        for (;;) {
            const std::int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= count) return;
            body(begin, std::min(begin + grain, count));
        }
    }
};

class Pool {
  public:
    Pool() {
#ifdef __linux__
        CPU_ZERO(&allowed_);
        sched_getaffinity(getpid(), sizeof allowed_, &allowed_);  // the process's, not a pinned caller's
#endif
    }

    ~Pool() {
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        offered_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    void run(Job& job) {
        offer(job);
        job.run();
        std::unique_lock lock(mutex_);
        std::erase(jobs_, &job);  // nothing is left to take: late workers must not find it
        left_.wait(lock, [&job] { return job.working == 0; });
    }

  private:
    void offer(Job& job) {
        const bool one = job.seats == 1;
        {
            const std::lock_guard lock(mutex_);
            grow(job.seats);
            keep_off_this_cpu();
            jobs_.push_back(&job);
        }
        one ? offered_.notify_one() : offered_.notify_all();
    }

    // Linux likes to wake a thread where its waker runs, to share a cache. Here the waker goes on working,
    // and on a machine with few cores the worker then waits up to 5 ms for its turn (docs/lab-notes.md).
    void keep_off_this_cpu() {
#ifdef __linux__
        const int here = sched_getcpu();
        if (here < 0 || here == avoided_) return;
        avoided_ = here;
        cpu_set_t others = allowed_;
        CPU_CLR(here, &others);
        if (CPU_COUNT(&others) == 0) return;
        for (auto& worker : workers_) pthread_setaffinity_np(worker.native_handle(), sizeof others, &others);
#endif
    }

    void grow(int wanted) {
        if (static_cast<int>(workers_.size()) >= wanted) return;
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all,
                        &before);  // workers inherit it: signals are for the program's own threads
        try {
            while (static_cast<int>(workers_.size()) < wanted) workers_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            // No thread to be had: the caller does more itself.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        avoided_ = -1;
    }

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            Job* job = nullptr;
            offered_.wait(lock, [&] { return closing_ || (job = open_job()) != nullptr; });
            if (job == nullptr) return;
            --job->seats;
            ++job->working;
            lock.unlock();
            set_float_mode(job->mode);
            job->run();
            lock.lock();
            if (--job->working == 0) left_.notify_all();
        }
    }

    Job* open_job() {
        for (Job* job : jobs_) {
            if (job->seats > 0 && job->next.load(std::memory_order_relaxed) < job->count) return job;
        }
        return nullptr;
    }

    std::mutex mutex_;
    std::condition_variable offered_, left_;
    std::vector<Job*> jobs_;
    std::vector<std::thread> workers_;
    bool closing_ = false;
#ifdef __linux__
    cpu_set_t allowed_;
#endif
    int avoided_ = -1;
};

// A fork copies the memory of the pool but none of its threads: the child leaves that pool untouched
// (destroying it would join threads that are not there) and makes its own on first use.
std::unique_ptr<Pool> pool;
std::mutex pool_mutex;

const int fork_handled = pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                                        [] {
                                            static_cast<void>(pool.release());
                                            pool_mutex.unlock();
                                        });

Pool& the_pool() {
    const std::lock_guard lock(pool_mutex);
    if (pool == nullptr) pool = std::make_unique<Pool>();
    return *pool;
}

}  // namespace

void parallel_for(std::int64_t count, std::int64_t grain, int threads, RangeBody body) {
    if (count <= 0) return;
    const std::int64_t grains = (count + grain - 1) / grain;
    const auto helpers = static_cast<int>(std::min<std::int64_t>(threads, grains)) - 1;
    if (helpers < 1) return body(0, count);
    Job job{body, count, grain, helpers};
    the_pool().run(job);
}

}  // namespace overlap
