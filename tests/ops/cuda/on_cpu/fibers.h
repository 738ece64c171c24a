// The threads of one block, one after the other on one CPU thread, with barriers.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernel.h"

// Runs body(thread) for each thread. Each runs until it ends or waits at the barrier; once all have, the next
// round.
class Fibers {
  public:
    void run(unsigned count, const std::function<void()>& body) {
        body_ = &body;
        has_fault_ = false;
        while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
        for (unsigned i = 0; i < count; ++i) start(*fibers_[i]);
        for (unsigned running = count; running > 0;) {
            running = 0;
            for (current_ = 0; current_ < count; ++current_) {
                threadIdx = {current_, 0};
                Fiber& fiber = *fibers_[current_];
                if (!fiber.ended) swapcontext(&scheduler_, &fiber.context);
                running += !fiber.ended;
            }
            if (has_fault_) return;
            // A barrier that only some threads reach hangs a GPU, or worse.
            if (running != 0 && running != count) throw std::logic_error("threads part at a barrier");
        }
    }

    void wait() { swapcontext(&fibers_[current_]->context, &scheduler_); }

    // Ends this thread where it is, and the block at the end of its round.
    void fault() {
        has_fault_ = true;
        fibers_[current_]->ended = true;
        wait();
    }

    static Fibers& instance() {
        static Fibers fibers;
        return fibers;
    }

  private:
    struct Fiber {
        ucontext_t context;
        bool ended = true;
        std::vector<char> stack = std::vector<char>(64 << 10);
    };

    void start(Fiber& fiber) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler_;
        fiber.ended = false;
        makecontext(&fiber.context, enter, 0);
    }

    static void enter() {
        Fibers& fibers = instance();
        (*fibers.body_)();
        fibers.fibers_[fibers.current_]->ended = true;
    }

    ucontext_t scheduler_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    const std::function<void()>* body_ = nullptr;
    unsigned current_ = 0;
    bool has_fault_ = false;
};
