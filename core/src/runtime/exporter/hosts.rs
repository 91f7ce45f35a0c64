//! Decides under which names the exporter may be asked.
//!
//! A web page can make the browser of a visitor send requests to a name of the page's own site, which the site then points to an address of
//! the visitor's network (DNS rebinding). The page would read the answer. Such a request has the site's name in its `Host` field, so the
//! exporter answers only under names that belong to this host. An address in the field is good if it is the one that was asked: it was not
//! looked up, so nobody could point it elsewhere.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The names and addresses of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hosts {
    /// In lower case, without a dot at the end.
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

/// Why a request is not answered under its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unanswered {
    /// The text is no host with an optional port.
    Malformed,
    /// It is the name of somebody else.
    Foreign,
}

impl Hosts {
    /// `localhost`, and these names and addresses, without ports.
    pub(super) fn new<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self { names: BTreeSet::from(["localhost".to_owned()]), addresses: BTreeSet::new() };
        for host in hosts {
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            match bare.parse::<IpAddr>() {
                Ok(address) => drop(all.addresses.insert(address.to_canonical())),
                Err(_) => drop(all.names.insert(plain(host))),
            }
        }
        all
    }

    /// Whether a request for `authority`, `host` or `host:port`, is for this host. `asked` is the address at which it arrived. The port may be
    /// any, because a tunnel or a container may have another one outside.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn check(&self, authority: &[u8], asked: IpAddr) -> Result<(), Unanswered> {
        let authority = std::str::from_utf8(authority).map_err(|_| Unanswered::Malformed)?;
        let known = match host_of(authority).ok_or(Unanswered::Malformed)? {
            Host::Address(address) => {
                let address = address.to_canonical();
                address == asked.to_canonical() || self.addresses.contains(&address)
            }
            Host::Name(name) => self.names.contains(&plain(name)),
        };
        if known { Ok(()) } else { Err(Unanswered::Foreign) }
    }
}

/// Whether it is a name or an address, without a port.
pub(super) fn is_host(text: &str) -> bool {
    let is_bare_address = text.parse::<IpAddr>().is_ok();
    is_bare_address || host_of(text).is_some() && (text.ends_with(']') || !text.contains(':'))
}

enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// The host in `host`, `host:port`, `[address]` or `[address]:port`, as RFC 3986 writes them (section 3.2).
fn host_of(authority: &str) -> Option<Host<'_>> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let address = address.parse::<Ipv6Addr>().ok()?;
        return (port.is_empty() || is_port(port.strip_prefix(':')?)).then(|| Host::Address(address.into()));
    }
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    let is_name = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    if !is_port(port) || host.is_empty() || !host.bytes().all(is_name) {
        return None;
    }
    Some(host.parse::<Ipv4Addr>().map_or(Host::Name(host), |address| Host::Address(address.into())))
}

/// Whether it is a port, or nothing.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.bytes().all(|digit| digit.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn plain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.strip_suffix('.').map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_host_and_the_address_that_was_asked_are_good_in_every_spelling() {
        for good in [
            "localhost",
            "localhost:9400",
            "LocalHost:1",
            "localhost.:9400",
            "localhost:",
            "n7",
            "N7:80",
            "n7.cluster.example",
            "metrics.example.:443",
            "127.0.0.1",
            "127.0.0.1:9400",
            "10.0.0.9:9400",
            "[fd00::9]",
            "[FD00:0:0::9]:9400",
        ] {
            assert_eq!(hosts().check(good.as_bytes(), LOOPBACK), Ok(()), "{good}");
        }
        let six = IpAddr::from(Ipv6Addr::LOCALHOST);
        assert_eq!(hosts().check(b"[::1]:9400", six), Ok(()));
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(hosts().check(b"127.0.0.1:9400", mapped), Ok(()), "a socket for both families");
    }

    #[test]
    fn other_names_and_addresses_are_foreign() {
        for foreign in [
            "evil.example",
            "evil.example:9400",
            "localhost.evil.example",
            "n7.evil.example",
            "xlocalhost",
            "n77",
            "127.0.0.2",
            "127.1",
            "0x7f.0.0.1",
            "2130706433",
            "10.0.0.8:9400",
            "[::1]:9400",
            "localhost..",
        ] {
            assert_eq!(hosts().check(foreign.as_bytes(), LOOPBACK), Err(Unanswered::Foreign), "{foreign}");
        }
    }

    #[test]
    fn what_is_no_host_is_malformed() {
        for malformed in [
            "",
            ":9400",
            "localhost:9400:1",
            "localhost:x",
            "localhost:+1",
            "localhost:65536",
            "local host",
            "user@localhost",
            "localhost/",
            "localhost,localhost",
            "::1",
            "[::1",
            "[::1]9400",
            "[::1]:x",
            "[127.0.0.1]",
            "[fe80::1%25eth0]",
            "http://localhost",
            "l\u{f6}calhost",
        ] {
            assert_eq!(hosts().check(malformed.as_bytes(), LOOPBACK), Err(Unanswered::Malformed), "{malformed}");
        }
        assert_eq!(hosts().check(b"\xff\xfe", LOOPBACK), Err(Unanswered::Malformed));
    }

    #[test]
    fn a_host_of_the_settings_has_no_port() {
        for (text, good) in [
            ("n7", true),
            ("n7.example.", true),
            ("10.0.0.9", true),
            ("::1", true),
            ("[::1]", true),
            ("n7:9400", false),
            ("[::1]:9400", false),
            ("http://n7", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(is_host(text), good, "{text}");
        }
    }

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn hosts() -> Hosts {
        Hosts::new(["n7", "N7.Cluster.Example", "metrics.example.", "10.0.0.9", "[fd00::9]"])
    }
}
