//! What a peer may ask for. Every length is checked against one of these before anything is allocated.

/// Bytes of a tensor's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 64;
/// Tensors of one job.
pub const TENSORS_MAX: usize = 65_536;
/// Parts of one tensor: at 64 KiB, the smallest part, this allows tensors of 64 GiB.
pub const PARTS_MAX: usize = 1 << 20;
/// Members of one job, workers and servers together.
pub const MEMBERS_MAX: usize = 4_096;
/// Bytes of one part. A part is about 4 MiB a local rank.
pub const PART_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one control frame: a declaration of `TENSORS_MAX` names fits.
pub const FRAME_BYTES_MAX: usize = 32 << 20;
/// Bytes of a free text in a frame: a cause, a host name, an address.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// Bytes of the body of a reject.
pub const REJECT_BYTES_MAX: u64 = 64 << 10;
