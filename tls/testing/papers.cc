#include "tls/testing/papers.h"

#include <gtest/gtest.h>

#include <fstream>

namespace holdfast::tls {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Papers::Papers(const std::string& authority_name)
    : authority(*Authority::make(authority_name, Validity())) {
  config.server_cert_path = path("server.p12");
  config.client_cert_path = path("client.p12");
  config.ca_cert_path = path("ca.crt");
  config.crl_path = path("crl.pem");
  write("ca.crt", *authority.certificate());
  issue(Role::kServer, {.name = "the-server", .roles = {}, .hosts = {"localhost", "127.0.0.1"}});
  issue(Role::kClient, {.name = "the-client", .roles = {}, .hosts = {}});
  revoke({});
}

void Papers::write(const std::string& name, const std::string& bytes) {
  EXPECT_TRUE(std::ofstream(path(name), std::ios::binary) << bytes);
}

long Papers::issue(Role role, Request request, bool any_role) {
  const bool server = role == Role::kServer;
  if (request.roles.empty() && !any_role) request.roles = server ? "serverAuth" : "clientAuth";
  const auto issued =
      authority.issue(request, Password(server ? kServerPassword : kClientPassword));
  EXPECT_TRUE(issued) << issued.error().what;
  write(server ? "server.p12" : "client.p12", issued->pkcs12);
  return issued->serial;
}

void Papers::revoke(const std::set<long>& serials, const Validity& validity) {
  write("crl.pem", *authority.revocation_list(serials, validity));
}

Result<std::shared_ptr<Context>> Papers::context(Role role) const {
  return Context::make(config, role,
                       Password(role == Role::kServer ? kServerPassword : kClientPassword));
}

std::string Papers::error_of(Role role) const {
  const auto made = context(role);
  return made ? "none" : made.error().what;
}

SslPtr Papers::careless(Role role) const {
  const bool server = role == Role::kServer;
  const auto identity = read_identity(server ? config.server_cert_path : config.client_cert_path,
                                      role, Password(server ? kServerPassword : kClientPassword));
  EXPECT_TRUE(identity) << identity.error().what;
  const SslContextPtr context(SSL_CTX_new(server ? TLS_server_method() : TLS_client_method()));
  EXPECT_EQ(SSL_CTX_use_certificate(context.get(), identity->certificate.get()), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), identity->key.get()), 1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
  SslPtr ssl(SSL_new(context.get()));
  server ? SSL_set_accept_state(ssl.get()) : SSL_set_connect_state(ssl.get());
  return ssl;
}

Meeting meet_under(int version, const Result<SslPtr>& server, const Result<SslPtr>& client) {
  EXPECT_TRUE(server) << server.error().what;
  EXPECT_TRUE(client) << client.error().what;
  for (SSL* ssl : {server->get(), client->get()}) {
    EXPECT_EQ(SSL_set_min_proto_version(ssl, version), 1);
    EXPECT_EQ(SSL_set_max_proto_version(ssl, version), 1);
  }
  return meet(server->get(), client->get());
}

}  // namespace holdfast::tls
