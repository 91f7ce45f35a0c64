//! Links in shared memory within one process: the promises of every transport, and what only this one has to keep.

use std::sync::Arc;

use super::*;
use crate::mem::Copies;
use crate::transport::contract::{self, World};
use crate::transport::quic::{Authority, Credentials};
use crate::transport::{Inbox, Listener, Transport};
use crate::types::{NodeId, Role};

contract::promises!(Machine::new());

/// A job on this machine.
struct Machine {
    authority: Authority,
    directory: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { authority: Authority::create("test").unwrap(), directory: tempfile::tempdir().unwrap() }
    }

    fn credentials(&self, role: Role) -> Credentials {
        self.authority.credentials(role).unwrap()
    }
}

impl World for Machine {
    fn listen(&self, inbox: Inbox) -> (Listener, NodeId) {
        let credentials = self.credentials(Role::Server);
        let listener = listener::bind(self.directory.path(), &credentials, &Copies::default(), inbox).unwrap();
        (listener, credentials.node())
    }

    fn door(&self, listener: &Listener) -> String {
        listener.address.clone()
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(ShmTransport::new(&self.credentials(Role::Worker), &Copies::default()).unwrap())
    }
}
