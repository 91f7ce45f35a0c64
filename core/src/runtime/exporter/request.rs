//! Decides what a request asks for, and whether it gets it. It reads bytes, and knows no socket.

use std::net::IpAddr;

use httparse::{EMPTY_HEADER, Error, Request, Status as Parsed};

use super::hosts::{Hosts, Unanswered};

/// The longest head of a request: its first line and its fields.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Prometheus sends six, a browser about fifteen.
const FIELDS_MAX: usize = 64;

/// What a request is so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Its head is not complete.
    More,
    /// It is complete, or nothing that follows could make it a good one.
    Whole(Verdict),
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// The page that it gets, or why it gets none.
    pub(super) outcome: Result<Page, Refusal>,
    /// Whether it wants the page itself, or only the head of the answer (`HEAD`).
    pub(super) wants_body: bool,
}

impl Verdict {
    /// Whether a probe asks, which gets little and must not wait for others.
    pub(super) fn is_probe(self) -> bool {
        match self.outcome {
            Ok(Page::Health | Page::Readiness) => true,
            Ok(Page::Front | Page::Metrics | Page::Job) | Err(_) => false,
        }
    }
}

/// What the exporter shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Page {
    /// `/`
    Front,
    /// `/metrics`
    Metrics,
    /// `/job`
    Job,
    /// `/healthz`
    Health,
    /// `/readyz`
    Readiness,
}

/// Why a request gets no page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It is no request of HTTP/1, or has not exactly one host.
    Malformed,
    /// It is for a host that this one is not.
    OtherHost,
    /// There is no such page.
    NoPage,
    /// Pages can only be read.
    OtherMethod,
    /// It was not complete in time.
    Slow,
    /// Its head is longer than `HEAD_BYTES_MAX`, or has too many fields.
    Long,
    /// It is of HTTP/2 or later.
    OtherVersion,
    /// Too many connections are open.
    Busy,
}

/// Reads a request from all its bytes so far. `asked` is the address at which it arrived. A body, and what follows, is not looked at, because
/// a connection serves one request.
pub(super) fn read(head: &[u8], hosts: &Hosts, asked: IpAddr) -> Reading {
    let mut fields = [EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut fields);
    let refused = |refusal| Reading::Whole(Verdict { outcome: Err(refusal), wants_body: true });
    match request.parse(head) {
        Ok(Parsed::Partial) if head.len() < HEAD_BYTES_MAX => return Reading::More,
        Ok(Parsed::Partial) | Err(Error::TooManyHeaders) => return refused(Refusal::Long),
        Err(Error::Version) if names_version(head) => return refused(Refusal::OtherVersion),
        Err(_) => return refused(Refusal::Malformed),
        Ok(Parsed::Complete(_)) => {}
    }
    let method = request.method.unwrap_or_default();
    let outcome = check(&request, hosts, asked).and_then(|path| match (method, path) {
        ("GET" | "HEAD", Some("/")) => Ok(Page::Front),
        ("GET" | "HEAD", Some("/metrics")) => Ok(Page::Metrics),
        ("GET" | "HEAD", Some("/job")) => Ok(Page::Job),
        ("GET" | "HEAD", Some("/healthz")) => Ok(Page::Health),
        ("GET" | "HEAD", Some("/readyz")) => Ok(Page::Readiness),
        ("GET" | "HEAD", Some(_)) => Err(Refusal::NoPage),
        ("GET" | "HEAD", None) => Err(Refusal::Malformed),
        _ => Err(Refusal::OtherMethod),
    });
    Reading::Whole(Verdict { outcome, wants_body: method != "HEAD" })
}

/// Whether the third word of a request names a version of HTTP, whichever.
fn names_version(head: &[u8]) -> bool {
    head.split(|byte| *byte == b' ').nth(2).is_some_and(|word| word.starts_with(b"HTTP/"))
}

/// The path of a request for this host, without its query. `None` if its target is no path, such as `*`.
///
/// # Errors
/// If it is not for this host. So nobody learns of the pages who asks for another one.
fn check<'a>(request: &Request<'_, 'a>, hosts: &Hosts, asked: IpAddr) -> Result<Option<&'a str>, Refusal> {
    let is_ours = |authority: &[u8]| {
        hosts.check(authority, asked).map_err(|why| match why {
            Unanswered::Malformed => Refusal::Malformed,
            Unanswered::Foreign => Refusal::OtherHost,
        })
    };
    let mut named = request.headers.iter().filter(|field| field.name.eq_ignore_ascii_case("host"));
    let (Some(host), None) = (named.next(), named.next()) else { return Err(Refusal::Malformed) };
    is_ours(host.value)?;
    let target = request.path.unwrap_or_default();
    let path = match absolute(target) {
        Some((authority, path)) => {
            is_ours(authority.as_bytes())?;
            path
        }
        None => target,
    };
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Ok(path.starts_with('/').then_some(path))
}

/// The authority and the path of a target in the form that proxies get, `http://host/path`, which every server must take (RFC 9112, section
/// 3.2.2).
fn absolute(target: &str) -> Option<(&str, &str)> {
    const SCHEME: &str = "http://";
    let rest = target.split_at_checked(SCHEME.len()).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))?.1;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    Some((authority, if path.starts_with('/') { path } else { "/" }))
}

#[cfg(test)]
mod tests;
