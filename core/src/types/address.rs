//! Where a process accepts connections: a list of addresses, each with the scheme of the transport that leads there.
//!
//! As text an address is `quic://node7:9000`, `shm:///run/gradlane/socket` or `mem://server`. On the wire it is the code of its scheme and
//! its place. A process may announce several addresses, also of one scheme: then the order of the list counts, and the first that leads
//! there is used. Which scheme is preferred is the business of [`transport::router`](crate::transport::router).

use std::fmt;
use std::str::FromStr;

use super::{NodeId, printable};
use crate::error::{Error, Result};

/// The transport that an address is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scheme {
    /// QUIC. The place is `host:port`.
    Quic,
    /// Memory that both processes map. The place is the path of a socket.
    Shm,
    /// Memory of one process. The place is a name.
    Mem,
    /// A scheme with this code, which this version does not know. A process keeps such an address and passes it on, because newer processes
    /// of the job may use it. It never connects to one.
    Unknown(u8),
}

/// The processes to which an address is of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Those to which a network leads.
    Network,
    /// Those of the same machine.
    Machine,
    /// The process that announced it.
    Process,
}

impl Scheme {
    /// All that this version knows, each with its code on the wire, its name and its reach.
    const TABLE: [(Self, u8, &'static str, Reach); 3] = [
        (Self::Quic, 1, "quic", Reach::Network),
        (Self::Shm, 2, "shm", Reach::Machine),
        (Self::Mem, 3, "mem", Reach::Process),
    ];

    /// The scheme with this code on the wire.
    pub fn from_code(code: u8) -> Self {
        Self::TABLE.into_iter().find(|row| row.1 == code).map_or(Self::Unknown(code), |row| row.0)
    }

    /// Its code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Unknown(code) => code,
            Self::Quic | Self::Shm | Self::Mem => self.row().1,
        }
    }

    /// To which processes an address of this scheme is of use. Nothing is known of an unknown one, so nobody is excluded.
    pub fn reach(self) -> Reach {
        match self {
            Self::Unknown(_) => Reach::Network,
            Self::Quic | Self::Shm | Self::Mem => self.row().3,
        }
    }

    /// The names of all that this version knows, for messages.
    pub fn known() -> String {
        Self::TABLE.map(|row| row.2).join(", ")
    }

    fn row(self) -> (Self, u8, &'static str, Reach) {
        Self::TABLE.into_iter().find(|row| row.0 == self).expect("every known scheme has a row")
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "scheme-{code}"),
            Self::Quic | Self::Shm | Self::Mem => f.write_str(self.row().2),
        }
    }
}

/// One way to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The transport that leads there.
    pub scheme: Scheme,
    /// The place in the form of the scheme. What a peer announced is not checked before the transport uses it.
    pub at: String,
}

impl Address {
    /// An address of `scheme`.
    pub fn new(scheme: Scheme, at: impl Into<String>) -> Self {
        Self { scheme, at: at.into() }
    }

    /// The place of the first of `addresses` that has `scheme`.
    pub fn of(addresses: &[Self], scheme: Scheme) -> Option<&str> {
        addresses.iter().find(|address| address.scheme == scheme).map(|address| address.at.as_str())
    }

    /// The one of `addresses` that messages name: the first to which a network leads, or else the first.
    pub fn shown(addresses: &[Self]) -> Option<&Self> {
        addresses.iter().find(|address| address.scheme.reach() == Reach::Network).or(addresses.first())
    }

    /// What a firewall must let through, in words for those who look after firewalls.
    pub fn traffic(&self) -> String {
        let at = printable(&self.at);
        match (self.scheme, at.rsplit_once(':')) {
            (Scheme::Quic, Some((host, port))) => format!("UDP port {port} of {host}"),
            (Scheme::Quic, None) => format!("UDP to {at}"),
            (Scheme::Shm | Scheme::Mem | Scheme::Unknown(_), _) => format!("connections to {at}"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, printable(&self.at))
    }
}

impl FromStr for Address {
    type Err = Error;

    /// # Errors
    /// [`Error::InvalidArgument`] with the schemes that this version knows, if `text` is not `scheme://place` with one of them.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: String| Error::InvalidArgument {
            what: format!("the address {text:?} {problem}"),
            hint: format!("write it as scheme://place; the schemes are {}", Scheme::known()),
        };
        let (name, at) = text.split_once("://").ok_or_else(|| refuse("has no scheme".to_owned()))?;
        let row = Scheme::TABLE.into_iter().find(|row| row.2 == name);
        let (scheme, ..) = row.ok_or_else(|| refuse(format!("has the unknown scheme {name:?}")))?;
        if at.is_empty() {
            return Err(refuse("has no place".to_owned()));
        }
        Ok(Self::new(scheme, at))
    }
}

/// A process to connect to: where it listens, and who it must turn out to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Where it listens. Those that are of no use to this process may be missing.
    pub addresses: Vec<Address>,
    /// The identity that its certificate must prove.
    pub node: NodeId,
    /// For messages, such as `server 1`.
    pub name: String,
}

impl Peer {
    /// The place of its first address with `scheme`.
    ///
    /// # Errors
    /// [`Error::FailedPrecondition`] if it has none.
    pub fn at(&self, scheme: Scheme) -> Result<&str> {
        Address::of(&self.addresses, scheme).ok_or_else(|| self.has_none(&scheme.to_string()))
    }

    /// The error of a process that can use addresses with these `schemes` alone, where the peer has none of them.
    pub fn has_none(&self, schemes: &str) -> Error {
        let addresses: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        let offered = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
        Error::FailedPrecondition {
            what: format!("{} has no address that this process can use; it offers {offered}", self.name),
            hint: format!("this process uses {schemes}; compare the setting `transport` and the versions of both"),
        }
    }
}

/// `server 1 at node7:9000`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Address::shown(&self.addresses) {
            Some(address) => write!(f, "{} at {}", self.name, printable(&address.at)),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for (text, scheme, at) in [
            ("quic://node7:9000", Scheme::Quic, "node7:9000"),
            ("quic://[::1]:9000", Scheme::Quic, "[::1]:9000"),
            ("shm:///run/gradlane/socket", Scheme::Shm, "/run/gradlane/socket"),
            ("mem://server", Scheme::Mem, "server"),
        ] {
            let address = Address::new(scheme, at);
            assert_eq!((text.parse(), address.to_string()), (Ok(address), text.to_owned()));
        }
    }

    #[test]
    fn an_unknown_scheme_is_answered_with_the_known_ones() {
        for (text, problem) in [
            ("tcp://node7:9000", "the unknown scheme \"tcp\""),
            ("scheme-9://node7", "the unknown scheme \"scheme-9\""),
            ("node7:9000", "has no scheme"),
            ("quic://", "has no place"),
        ] {
            let Err(Error::InvalidArgument { what, hint }) = text.parse::<Address>() else { panic!("{text}") };
            assert!(what.contains(problem) && hint.contains("quic, shm, mem"), "{what}: {hint}");
        }
    }

    #[test]
    fn a_code_stands_for_one_scheme_also_if_it_is_unknown() {
        for code in 0..=u8::MAX {
            assert_eq!(Scheme::from_code(code).code(), code);
        }
        assert_eq!(Address::new(Scheme::from_code(9), "x\n").to_string(), "scheme-9://x\\n");
    }

    #[test]
    fn messages_name_the_address_that_a_network_leads_to() {
        let [quic, other] = ["a:1", "b:1"].map(|at| Address::new(Scheme::Quic, at));
        let shm = Address::new(Scheme::Shm, "/s");
        let shown = |addresses: &[&Address]| {
            let addresses = addresses.iter().copied().cloned().collect();
            Peer { addresses, node: NodeId([0; 32]), name: "server 0".to_owned() }.to_string()
        };
        assert_eq!(shown(&[&shm, &quic, &other]), "server 0 at a:1");
        assert_eq!((shown(&[&shm]), shown(&[])), ("server 0 at /s".to_owned(), "server 0".to_owned()));
    }
}
