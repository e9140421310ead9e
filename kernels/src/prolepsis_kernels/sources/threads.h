// A fixed team of threads that runs one job at a time, with a barrier and shared work counters.
// Own threads and not OpenMP: torch brings its own OpenMP runtime, and two teams that spin on the same cores starve each other.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

class Team {
 public:
  // `awake`: how long a worker without a job stays awake, giving way to others. To wake a sleeping one takes 0.2 ms on a virtual
  // machine, and between two passes of a decoder the caller computes for 1 to 2.
  explicit Team(int size, std::chrono::microseconds awake = {}) : size_(size), awake_(awake) {
    for (int i = 1; i < size; i++) workers_.emplace_back([this, i] { work(i); });
  }

  virtual ~Team() {
    stopping_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  inline static thread_local int me = 0;  // this thread's place in its team

  // The range [first, second) of `count` things that a member works on: this one, or the one at that place.
  std::pair<int64_t, int64_t> part(int64_t count, int place = me) const { return {count * place / size_, count * (place + 1) / size_}; }

  // Runs the job here and on every worker (`me` tells which this is); returns when all are done. Virtual: called from another library
  // it is the code of the one that made the team, which shares with the workers what an atomic's waiters stand in.
  virtual void run(const std::function<void()>& job) {
    job_ = &job;
    running_.store(size_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    job();
    for (int spins = 0; running_.load(std::memory_order_acquire) != 0;) pause(spins);
  }

  // Waits until every member of the team has come here.
  void barrier() {
    if (size_ == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
    } else {
      for (int spins = 0; round_.load(std::memory_order_acquire) == round;) pause(spins);
    }
  }

 private:
  static constexpr int kSpinsBeforeYield = 4000;

  static void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }

  static void pause(int& spins) {
    relax();
    if (++spins > kSpinsBeforeYield) std::this_thread::yield();
  }

  void work(int place) {
    me = place;
    for (int seen = 0;;) {
      await(seen);
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_) return;
      (*job_)();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  // Waits for a generation after `seen`.
  void await(int seen) {
    for (int spins = 0; spins < kSpinsBeforeYield / 2; spins++, relax())
      if (generation_.load(std::memory_order_acquire) != seen) return;
    for (const auto end = std::chrono::steady_clock::now() + awake_; std::chrono::steady_clock::now() < end; std::this_thread::yield())
      if (generation_.load(std::memory_order_acquire) != seen) return;
    generation_.wait(seen, std::memory_order_acquire);
  }

  const int size_;
  const std::chrono::microseconds awake_;
  std::vector<std::thread> workers_;
  const std::function<void()>* job_ = nullptr;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<int> generation_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};
