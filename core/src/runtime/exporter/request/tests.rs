use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;

#[test]
fn the_pages_are_read_in_every_form_that_http_allows() {
    for (request, page) in [
        ("GET /metrics HTTP/1.1\r\nHost: localhost:9400\r\n\r\n", Page::Metrics),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Front),
        ("GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Front),
        ("GET http://localhost?/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Front),
        ("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Health),
        ("GET /job HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Job),
        ("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Readiness),
        ("GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n", Page::Readiness),
        ("GET /metrics?name[]=up&x=%2F HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Metrics),
        ("GET /metrics? HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nhOST:localhost\r\n\r\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nHost:  \t127.0.0.1:9400 \t\r\n\r\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nAccept: text/plain;version=0.0.4;q=1\r\nHost: LOCALHOST.\r\n\r\n", Page::Metrics),
        ("GET http://localhost:9400/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Metrics),
        ("GET HTTP://LocalHost/healthz?x HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Health),
        ("\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\nHost: localhost\n\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /nothing HTTP/1.1\r\n\r\n", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", Page::Metrics),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz", Page::Metrics),
    ] {
        assert_eq!(outcome(request), Ok(page), "{request:?}");
    }
}

#[test]
fn a_head_is_asked_for_without_its_body() {
    let verdict = |request: &str| match reading(request.as_bytes()) {
        Reading::Whole(verdict) => verdict,
        Reading::More => panic!("{request:?} is whole"),
    };
    let head = verdict("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(head, Verdict { outcome: Ok(Page::Metrics), wants_body: false });
    let refused = verdict("HEAD /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(refused, Verdict { outcome: Err(Refusal::NoPage), wants_body: false });
    assert!(verdict("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").wants_body);
}

#[test]
fn every_other_request_is_refused_for_its_reason() {
    let fields = |count| format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(count));
    let long = |count| format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}", "y".repeat(count));
    for (request, refusal) in [
        // No request of HTTP/1.
        ("GET /metrics\r\n", Refusal::Malformed),
        ("GET /metrics\r\n\r\n", Refusal::Malformed),
        ("GET  /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET /met rics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("\0\0\0\x01binary", Refusal::Malformed),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost : localhost\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: local\0host\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1 \r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", Refusal::OtherVersion),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Refusal::OtherVersion),
        // The host.
        ("GET /metrics HTTP/1.1\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.0\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost:\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHOST: evil.example\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: localhost, evil.example\r\n\r\n", Refusal::Malformed),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", Refusal::OtherHost),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\n\r\n", Refusal::OtherHost),
        ("GET http://localhost/metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", Refusal::OtherHost),
        ("GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherHost),
        ("GET http://localhost@evil.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET http:///metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("POST /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", Refusal::OtherHost),
        // The method.
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", Refusal::OtherMethod),
        ("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherMethod),
        ("DELETE /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherMethod),
        ("CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherMethod),
        ("get /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherMethod),
        // The page.
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", Refusal::OtherHost),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::OtherMethod),
        ("GET /index.html HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET /metrics/ HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET /Metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET /%6detrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET //metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET /../metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NoPage),
        ("GET metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        ("GET https://localhost/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::Malformed),
        // The length.
        (&fields(FIELDS_MAX), Refusal::Long),
        (&long(HEAD_BYTES_MAX), Refusal::Long),
        (&format!("GET /{}", "x".repeat(HEAD_BYTES_MAX)), Refusal::Long),
    ] {
        let request = &request.as_bytes()[..request.len().min(HEAD_BYTES_MAX)];
        let Reading::Whole(verdict) = reading(request) else { panic!("{} is whole", String::from_utf8_lossy(request)) };
        assert_eq!(verdict.outcome, Err(refusal), "{}", String::from_utf8_lossy(request));
    }
}

#[test]
fn a_head_may_be_as_long_as_the_limit() {
    let start = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";
    let request = format!("{start}{}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX - start.len() - 4));
    assert_eq!(request.len(), HEAD_BYTES_MAX);
    assert_eq!(outcome(&request), Ok(Page::Metrics));
}

#[test]
fn a_request_is_whole_with_its_last_byte_and_not_before() {
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for end in 0..request.len() {
        assert_eq!(reading(&request.as_bytes()[..end]), Reading::More, "{:?}", &request[..end]);
    }
    assert_eq!(outcome(request), Ok(Page::Metrics));
}

proptest! {
    #[test]
    fn any_bytes_are_answered_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _no_panic = reading(&bytes);
    }

    #[test]
    fn only_a_request_for_this_host_gets_a_page(host in "[a-z0-9.:\\[\\]@-]{0,20}") {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let name = host.split(':').next().unwrap_or_default();
        let ours = ["localhost", "localhost.", "127.0.0.1", "n7", "n7."].contains(&name);
        prop_assert!(ours || outcome(&request).is_err(), "{host}");
    }
}

fn outcome(request: &str) -> Result<Page, Refusal> {
    match reading(request.as_bytes()) {
        Reading::Whole(verdict) => verdict.outcome,
        Reading::More => panic!("{request:?} is whole"),
    }
}

fn reading(bytes: &[u8]) -> Reading {
    read(bytes, &Hosts::new(["n7"]), IpAddr::V4(Ipv4Addr::LOCALHOST))
}
