//! The capabilities and needs of a link.

/// The capabilities of one link. They do not change while the link is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Bytes can be damaged on the way, so a body is sent with a checksum unless the settings say otherwise.
    pub needs_checksum: bool,
    /// The peer can read staging memory where it lies, so a body that lies there is not copied.
    pub zero_copy: bool,
    /// It copies bodies, and looks at a [`Push::look`](super::Push::look) in the same pass.
    pub looks: bool,
}

impl Capabilities {
    /// Those of a link over a network or a simulated network.
    pub const NETWORK: Self = Self { needs_checksum: true, zero_copy: false, looks: false };
    /// Those of a link through memory that both processes map.
    pub const SHARED_MEMORY: Self = Self { needs_checksum: false, zero_copy: true, looks: true };
}
