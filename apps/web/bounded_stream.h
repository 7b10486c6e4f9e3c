// BoundedStream: a connection of httplib's that neither takes nor holds up more than it is allowed.
#pragma once

#include <httplib.h>

#include <chrono>

namespace holdfast::apps::web {

// httplib limits the time of each read, and the length of each line. A client that sends a letter
// now and then, or header after header, could so hold a thread and its memory for ever. Here a
// request has so many bytes and so much time in all, and so does its answer.
class BoundedStream final : public httplib::Stream {
 public:
  static constexpr std::size_t kMostBytes = 8192;  // Of a request.
  static constexpr std::chrono::seconds kForRequest{5};
  static constexpr std::chrono::seconds kForAnswer{30};

  explicit BoundedStream(int socket);

  [[nodiscard]] bool is_readable() const override;
  [[nodiscard]] bool is_writable() const override;
  ssize_t read(char* bytes, std::size_t size) override;
  ssize_t write(const char* bytes, std::size_t size) override;
  // Nobody here asks for them.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  [[nodiscard]] int socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] bool wait(short events, Clock::time_point until) const;
  [[nodiscard]] ssize_t fill();

  const int socket_;
  const Clock::time_point began_ = Clock::now();
  char buffer_[1024];  // httplib reads letter by letter.
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::size_t taken_ = 0;  // Bytes that came from the client.
};

}  // namespace holdfast::apps::web
