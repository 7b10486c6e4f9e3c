#include "runtime/worker/data_links.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/text.h"
#include "io/loop.h"
#include "io/peer_stream.h"
#include "runtime/worker/peer_words.h"

namespace holdfast::runtime {
namespace {

using namespace std::chrono_literals;
using collective::Link;
using collective::Wanted;
using Clock = std::chrono::steady_clock;
using What = PeerHello::What;

constexpr Duration kHelloLimit = 5s;
// Then the endpoint is looked up anew: the peer may be elsewhere by now.
constexpr Duration kOneTry = 10s;
constexpr Duration kFirstDelay = 20ms;
constexpr Duration kLastDelay = 500ms;
constexpr Duration kBetweenComplaints = 10s;
constexpr std::size_t kMostWaiting = 4096;  // Streams that no call here has asked for yet.
constexpr std::size_t kMostNamed = 8;       // Peers that an error names.

class StreamLink final : public Link {
 public:
  using Damaged = std::function<void(Rank, const std::string&)>;

  StreamLink(std::shared_ptr<io::PeerStream> stream, Rank peer, Damaged told)
      : stream_(std::move(stream)),
        duplex_(!stream_->stream().is_under_tls()),
        peer_(peer),
        told_(std::move(told)) {}

  Moved read(std::span<std::byte> into) override {
    return moved(stream_->stream().read({reinterpret_cast<char*>(into.data()), into.size()}));
  }
  Moved write(std::span<const std::byte> bytes) override {
    return moved(
        stream_->stream().write({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  [[nodiscard]] bool is_duplex() const override { return duplex_; }
  [[nodiscard]] int descriptor() const override { return stream_->descriptor(); }
  // Cuts only the socket: OpenSSL's part belongs to the thread that moves bytes.
  void cut() override { stream_->cut(); }
  void damaged() override {
    if (told_) told_(peer_, stream_->peer());
    cut();
  }

 private:
  using Outcome = io::Stream::Outcome;

  static Moved moved(io::Stream::Moved from) {
    switch (from.outcome) {
      case Outcome::kDone:
        return {State::kMoved, from.bytes};
      case Outcome::kWantsToRead:
        return {State::kWantsToRead};
      case Outcome::kWantsToWrite:
        return {State::kWantsToWrite};
      case Outcome::kEnd:
      case Outcome::kBroken:
        break;
    }
    return {State::kOver};
  }

  const std::shared_ptr<io::PeerStream> stream_;  // Shared with Impl::linked.
  const bool duplex_;
  const Rank peer_;
  const Damaged told_;
};

// The peer has gone, or has closed its end, while the stream waited here.
bool is_over(const io::PeerStream& stream) {
  pollfd one{.fd = stream.descriptor(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) > 0;
}

// Sends the first few bytes on a new stream. The kernel has room for them, so no write has to wait.
Status say_first(io::PeerStream& to, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto [outcome, count] = to.stream().write(bytes);
    if (outcome != io::Stream::Outcome::kDone) {
      return Error{Blame::kWorld, "the connection broke before anything was said on it"};
    }
    bytes.remove_prefix(count);
  }
  return {};
}

// How many streams may wait here: at most a quarter of the descriptors that this process may have.
std::size_t room_for_waiting() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostWaiting;
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, kMostWaiting);
}

// One link that a thread waits for.
struct Slot {
  Wanted wanted;
  std::optional<io::PeerStream> stream;
  std::string why;  // Why the last try failed.
  Duration delay = kFirstDelay;
};

// One call of make().
struct Request {
  std::string group;
  Generation generation = 0;
  collective::Links::Deadline deadline;
  std::vector<Slot> slots;
  std::size_t missing = 0;
  bool over = false;  // make() does not wait for it any more.
};

// A stream that has come before a call asked for it.
struct Waiting {
  PeerHello hello;
  io::PeerStream stream;
};

std::string seconds_of(Duration time) {
  char text[32];
  std::snprintf(
      text, sizeof text, "%g",
      static_cast<double>(std::chrono::ceil<std::chrono::milliseconds>(time).count()) / 1000);
  return text;
}

}  // namespace

struct DataLinks::Impl {
  explicit Impl(Options given) : options(std::move(given)), states(options.patience) {}

  // In the loop's thread.
  void serve(io::Membership membership);
  void accept(io::PeerStream stream);
  void take(io::FirstWord first);
  void reach(const std::shared_ptr<Request>& request, std::size_t index);
  void reached(const std::shared_ptr<Request>& request, std::size_t index,
               Result<io::PeerStream> made);
  void refused(const std::string& peer, const std::string& why);

  // Under the mutex.
  [[nodiscard]] std::string why_none_of_ours(const PeerHello& hello) const;
  bool give(Waiting& arrived);
  void keep(Waiting arrived);
  void claim(Request& request);
  static bool fits(const Request& request, const Slot& slot, const PeerHello& hello);
  void fill(Request& request, Slot& slot, io::PeerStream stream);
  [[nodiscard]] Status check(const std::string& group, Generation generation,
                             std::span<const Wanted> wanted) const;
  [[nodiscard]] std::string endpoint_of(Rank rank) const;
  [[nodiscard]] Error why_missing(const Request& request, Duration waited) const;

  // Counts a call of another thread as long as it lives. The token stops when the caller's does, or
  // when this object is being destroyed.
  class Call {
   public:
    Call(Impl& impl, const std::stop_token& cancel)
        : impl_(impl),
          by_caller_(cancel, [this] { either_.request_stop(); }),
          by_end_(impl.stop.get_token(), [this] { either_.request_stop(); }) {
      const std::lock_guard lock(impl_.mutex);
      ++impl_.calls;
    }
    ~Call() {
      const std::lock_guard lock(impl_.mutex);
      if (--impl_.calls == 0) impl_.changed.notify_all();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    [[nodiscard]] std::stop_token token() const { return either_.get_token(); }

   private:
    Impl& impl_;
    std::stop_source either_;
    std::stop_callback<std::function<void()>> by_caller_;
    std::stop_callback<std::function<void()>> by_end_;
  };

  const Options options;
  const pid_t owner = ::getpid();
  std::string endpoint;
  const std::size_t room = room_for_waiting();

  // The loop's thread only.
  io::Loop loop;
  std::unique_ptr<io::Listener> listener;
  std::optional<Instant> complained;
  std::uint64_t unsaid = 0;

  // Shared.
  std::stop_source stop;
  std::mutex mutex;  // Guards what follows.
  std::condition_variable_any changed;
  std::size_t calls = 0;
  std::optional<std::uint64_t> run_id;  // Once set_peers() was called.
  Rank me = kNoRank;
  std::vector<std::string> endpoints;
  std::map<std::string, Generation> newest;  // The newest generation of each group.
  std::list<std::shared_ptr<Request>> requests;
  std::vector<std::weak_ptr<io::PeerStream>> linked;  // Those of all links that are in use.
  std::list<Waiting> waiting;  // The oldest first; no two with the same hello.

  StateServer states;
  std::thread thread;  // Last: it uses all above.
};

// ---- In the loop --------------------------------------------------------------------------------

void DataLinks::Impl::serve(io::Membership membership) {
  listener->serve({.membership = std::move(membership),
                   .on_accept = nullptr,
                   .on_refused = [this](const std::string& peer,
                                        const std::string& why) { refused(peer, why); },
                   .on_stream = [this](io::PeerStream stream) { accept(std::move(stream)); },
                   .door = options.door});
}

void DataLinks::Impl::accept(io::PeerStream stream) {
  auto peer = stream.peer();
  io::read_first_word(loop, std::move(stream), missing_of_hello, kHelloLimit,
                      [this, peer = std::move(peer)](Result<io::FirstWord> first) {
                        first ? take(*std::move(first)) : refused(peer, first.error().what);
                      });
}

void DataLinks::Impl::take(io::FirstWord first) {
  auto hello = decode_hello(first.word);
  const auto peer = first.stream.peer();
  if (!hello) return refused(peer, hello.error().what);
  std::unique_lock lock(mutex);
  if (auto why = why_none_of_ours(*hello); !why.empty()) {
    lock.unlock();
    return refused(peer, why);
  }
  if (hello->what == What::kState) {
    lock.unlock();
    return states.add(std::move(first.stream), hello->to, hello->number);
  }
  Waiting arrived{*std::move(hello), std::move(first.stream)};
  if (!give(arrived)) keep(std::move(arrived));
}

void DataLinks::Impl::reach(const std::shared_ptr<Request>& request, std::size_t index) {
  std::string where;
  {
    const std::lock_guard lock(mutex);
    if (request->over) return;
    where = endpoint_of(request->slots[index].wanted.peer);
  }
  const auto to = endpoint_in(where);
  auto membership = options.membership();
  if (!to || !membership) {
    return reached(request, index,
                   to ? membership.error() : Error{Blame::kWorld, "its address is not known here"});
  }
  const Duration left = request->deadline - Clock::now();
  io::connect_stream(loop, to->host, to->port, *std::move(membership),
                     std::clamp<Duration>(left, 1ms, kOneTry),
                     [this, request, index](Result<io::PeerStream> made) {
                       reached(request, index, std::move(made));
                     });
}

void DataLinks::Impl::reached(const std::shared_ptr<Request>& request, std::size_t index,
                              Result<io::PeerStream> made) {
  const std::lock_guard lock(mutex);
  auto& slot = request->slots[index];
  if (request->over) return;
  if (made) {
    const PeerHello hello{.what = What::kLink,
                          .run_id = *run_id,
                          .number = request->generation,
                          .from = me,
                          .to = slot.wanted.peer,
                          .channel = slot.wanted.channel,
                          .group = request->group};
    if (auto said = say_first(*made, encode(hello)); !said) {
      made = said.error();
    }
  }
  if (made) return fill(*request, slot, *std::move(made));
  slot.why = made.error().what;
  loop.after(slot.delay, [this, request, index] { reach(request, index); });
  slot.delay = std::min(2 * slot.delay, kLastDelay);
}

// Logs one refusal in kBetweenComplaints at most, so that strangers can not fill the log.
void DataLinks::Impl::refused(const std::string& peer, const std::string& why) {
  ++unsaid;
  if (complained && io::Loop::now() - *complained < kBetweenComplaints) return;
  complained = io::Loop::now();
  const auto others = std::exchange(unsaid, 0) - 1;
  const auto text = cat("refused a stream of ", peer, " to this worker: ", why,
                        others == 0 ? "" : cat(" (and ", others, " more since such was said)"));
  options.say ? options.say(text) : (void)std::fprintf(stderr, "holdfast: %s\n", text.c_str());
}

// ---- Under the mutex ----------------------------------------------------------------------------

// Why a stream with this hello is refused; "": it is not.
std::string DataLinks::Impl::why_none_of_ours(const PeerHello& hello) const {
  const bool is_state = hello.what == What::kState;
  if (!run_id) return is_state ? "which run of the job this is is not known here yet" : "";
  if (hello.run_id != *run_id) return "it is of another run of the job";
  if (is_state) return "";
  if (hello.to != me) return cat("it looks for rank ", hello.to, ", and this is rank ", me);
  if (std::cmp_greater_equal(hello.from, endpoints.size()) || hello.from == me) {
    return cat("rank ", hello.from, ", which it says it is, is not among its peers");
  }
  const auto known = newest.find(hello.group);
  if (known != newest.end() && hello.number < known->second) {
    return cat("it is of generation ", hello.number, ", and ", known->second, " has begun here");
  }
  return "";
}

bool DataLinks::Impl::fits(const Request& request, const Slot& slot, const PeerHello& hello) {
  return !slot.wanted.connects && slot.wanted.peer == hello.from &&
         slot.wanted.channel == hello.channel && request.generation == hello.number &&
         request.group == hello.group;
}

// Gives the stream to the request that waits for it. False: none does.
bool DataLinks::Impl::give(Waiting& arrived) {
  for (const auto& request : requests) {
    for (auto& slot : request->slots) {
      if (!fits(*request, slot, arrived.hello)) continue;
      fill(*request, slot, std::move(arrived.stream));
      return true;
    }
  }
  return false;
}

void DataLinks::Impl::keep(Waiting arrived) {
  // A former stream with the same hello is one that its sender has given up.
  std::erase_if(waiting, [&](const auto& one) { return one.hello == arrived.hello; });
  if (waiting.size() >= room) waiting.pop_front();
  waiting.push_back(std::move(arrived));
}

void DataLinks::Impl::claim(Request& request) {
  for (auto one = waiting.begin(); one != waiting.end();) {
    const auto slot =
        std::find_if(request.slots.begin(), request.slots.end(),
                     [&](const auto& each) { return fits(request, each, one->hello); });
    if (slot == request.slots.end()) {
      ++one;
      continue;
    }
    if (!is_over(one->stream)) fill(request, *slot, std::move(one->stream));
    one = waiting.erase(one);
  }
}

// A second stream for a slot replaces the first one, which the peer has given up.
void DataLinks::Impl::fill(Request& request, Slot& slot, io::PeerStream stream) {
  if (!slot.stream) --request.missing;
  slot.stream = std::move(stream);
  if (request.missing == 0) changed.notify_all();
}

std::string DataLinks::Impl::endpoint_of(Rank rank) const {
  return std::cmp_less(rank, endpoints.size()) ? endpoints[static_cast<std::size_t>(rank)] : "";
}

Status DataLinks::Impl::check(const std::string& group, Generation generation,
                              std::span<const Wanted> wanted) const {
  if (!run_id) return Error{Blame::kWorld, "the addresses of the other ranks are not known yet"};
  if (group.size() > kLongestGroupName) {
    return Error{Blame::kUser, cat("a group's name has ", group.size(),
                                   " bytes; between hosts at most ", kLongestGroupName, " can be")};
  }
  for (const auto& one : wanted) {
    if (one.peer != me && one.peer >= 0 && std::cmp_less(one.peer, endpoints.size())) continue;
    return Error{Blame::kUser, cat("rank ", me, " of ", endpoints.size(),
                                   " can not have a link to rank ", one.peer)};
  }
  const auto known = newest.find(group);
  if (known == newest.end() || known->second <= generation) return {};
  return Error{Blame::kWorld,
               cat("generation ", generation, " is over: ", known->second, " has begun")};
}

Error DataLinks::Impl::why_missing(const Request& request, Duration waited) const {
  std::string text;
  std::size_t named = 0;
  for (const auto& slot : request.slots) {
    if (slot.stream || ++named > kMostNamed) continue;
    const auto where = endpoint_of(slot.wanted.peer);
    text += cat(named == 1 ? "" : "; ", "rank ", slot.wanted.peer, " (at ",
                where.empty() ? "an unknown address" : where, ") ");
    text += slot.why.empty() ? cat(slot.wanted.connects ? "did not answer" : "did not come",
                                   " within ", seconds_of(waited), " s")
                             : cat("can not be reached: ", slot.why);
  }
  if (named > kMostNamed) text += cat("; and ", named - kMostNamed, " more");
  return {Blame::kWorld, std::move(text)};
}

// ---- Any thread ---------------------------------------------------------------------------------

DataLinks::DataLinks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<DataLinks>> DataLinks::start(Options options) {
  auto membership = options.membership();
  if (!membership) return membership.error();
  HF_ASSERT(membership->kind == wire::PeerKind::kPeer);
  auto impl = std::make_unique<Impl>(std::move(options));
  auto listener = io::listen(impl->loop, impl->options.address, 0);
  if (!listener) return listener.error();
  impl->listener = *std::move(listener);
  impl->endpoint = host_and_port(impl->options.address, impl->listener->port());
  impl->serve(*std::move(membership));
  try {
    impl->thread = std::thread([loop = &impl->loop] { loop->run(); });
  } catch (const std::system_error& error) {
    return Error{Blame::kWorld, cat("no thread for the streams to other workers: ", error.what())};
  }
  return std::unique_ptr<DataLinks>(new DataLinks(std::move(impl)));
}

DataLinks::~DataLinks() {
  if (::getpid() != impl_->owner) {
    (void)impl_.release();
    return;
  }
  impl_->stop.request_stop();
  {
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait(lock, [&] { return impl_->calls == 0; });
  }
  impl_->loop.stop();
  impl_->thread.join();
}

const std::string& DataLinks::endpoint() const {
  return impl_->endpoint;
}

void DataLinks::set_peers(std::uint64_t run_id, Rank me, std::vector<std::string> endpoints) {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->run_id && *impl_->run_id != run_id) impl_->newest.clear();
    impl_->run_id = run_id;
    impl_->me = me;
    impl_->endpoints = std::move(endpoints);
    std::erase_if(impl_->waiting, [&](const auto& one) {
      return is_over(one.stream) || !impl_->why_none_of_ours(one.hello).empty();
    });
  }
  // The token may have changed.
  impl_->loop.post([impl = impl_.get()] {
    if (auto membership = impl->options.membership()) impl->serve(*std::move(membership));
  });
}

Result<std::vector<std::unique_ptr<Link>>> DataLinks::make(const std::string& group,
                                                           Generation generation,
                                                           std::span<const Wanted> wanted,
                                                           Deadline deadline,
                                                           const std::stop_token& cancel) {
  const auto began = Clock::now();
  Impl& impl = *impl_;
  const Impl::Call call(impl, cancel);
  const auto request = std::make_shared<Request>();
  request->group = group;
  request->generation = generation;
  request->deadline = deadline;
  for (const auto& one : wanted) request->slots.push_back({.wanted = one});
  request->missing = wanted.size();

  std::unique_lock lock(impl.mutex);
  if (auto checked = impl.check(group, generation, wanted); !checked) return checked.error();
  impl.newest[group] = generation;
  std::erase_if(impl.waiting, [&](const auto& one) {
    return one.hello.group == group && one.hello.number < generation;
  });
  impl.claim(*request);
  impl.requests.push_back(request);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].connects) impl.loop.post([&impl, request, i] { impl.reach(request, i); });
  }
  const bool made =
      impl.changed.wait_until(lock, call.token(), deadline, [&] { return request->missing == 0; });
  request->over = true;
  impl.requests.remove(request);
  // Closes the streams: a try under way may keep the request alive for longer than peers should
  // wait.
  if (!made) {
    auto why = impl.why_missing(*request, Clock::now() - began);
    if (call.token().stop_requested()) {
      why.what = cat("the links to other hosts were given up: ", why.what);
    }
    for (auto& slot : request->slots) slot.stream.reset();
    return why;
  }
  std::erase_if(impl.linked, [](const auto& stream) { return stream.expired(); });
  std::vector<std::unique_ptr<Link>> links;
  for (auto& slot : request->slots) {
    auto stream = std::make_shared<io::PeerStream>(*std::exchange(slot.stream, std::nullopt));
    impl.linked.push_back(stream);
    links.push_back(
        std::make_unique<StreamLink>(std::move(stream), slot.wanted.peer, impl.options.damaged));
  }
  return links;
}

std::size_t DataLinks::cut() {
  const std::lock_guard lock(impl_->mutex);
  std::size_t count = impl_->waiting.size();
  impl_->waiting.clear();
  for (const auto& one : impl_->linked) {
    const auto stream = one.lock();
    if (!stream) continue;
    stream->cut();
    ++count;
  }
  return count;
}

void DataLinks::serve_state(StateServer::StateOf state_of) {
  impl_->states.serve(std::move(state_of));
}

Status DataLinks::fetch_state(const std::string& endpoint, Rank rank, Version version,
                              StateSink& sink, const std::stop_token& cancel) {
  Impl& impl = *impl_;
  const Impl::Call call(impl, cancel);
  const auto to = endpoint_in(endpoint);
  if (!to) return Error{Blame::kUser, cat("'", endpoint, "' is no address of a worker")};
  auto membership = impl.options.membership();
  if (!membership) return membership.error();
  const auto answer = std::make_shared<std::optional<Result<io::PeerStream>>>();
  impl.loop.post([&impl, to, answer, mine = *std::move(membership)] {
    io::connect_stream(impl.loop, to->host, to->port, mine, impl.options.patience,
                       [&impl, answer](Result<io::PeerStream> made) {
                         const std::lock_guard lock(impl.mutex);
                         *answer = std::move(made);
                         impl.changed.notify_all();
                       });
  });
  std::unique_lock lock(impl.mutex);
  const bool answered = impl.changed.wait(lock, call.token(), [&] { return answer->has_value(); });
  if (!answered) return Error{Blame::kWorld, "fetching a state was given up"};
  if (!impl.run_id) return Error{Blame::kWorld, "which run of the job this is is not known yet"};
  const PeerHello hello{.what = What::kState,
                        .run_id = *impl.run_id,
                        .number = version,
                        .from = impl.me,
                        .to = rank,
                        .group = ""};
  lock.unlock();
  if (!**answer) return (**answer).error();
  auto stream = *std::move(**answer);
  return receive_state(stream, hello, sink, {call.token(), impl.options.patience});
}

}  // namespace holdfast::runtime
