//! QUIC over real sockets of this host.

use std::sync::Arc;

use super::{Authority, Credentials, QuicTransport, Settings, listener};
use crate::transport::contract::{self, World};
use crate::transport::{Inbox, Listener, Transport};
use crate::types::{NodeId, Role};

contract::promises!(Loopback::new());

struct Loopback {
    authority: Authority,
}

impl Loopback {
    fn new() -> Self {
        Self { authority: Authority::create("test").unwrap() }
    }

    fn credentials(&self, role: Role) -> Credentials {
        self.authority.credentials(role).unwrap()
    }
}

impl World for Loopback {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.credentials(Role::Server);
        (listener::bind("127.0.0.1:0", &credentials, &Settings::default(), inbox).unwrap(), credentials.node())
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(QuicTransport::new(&self.credentials(Role::Worker), &Settings::default()).unwrap())
    }
}
