//! What a server of one's own does with the keys of `KVWorker`: the request handle of ps-lite's `KVServer`, as a trait.
//!
//! A program gives its [`Handle`] to [`run_server_with`](crate::run_server_with) and is a server like `gradlane-server`. The handle gets
//! pushes and pulls of keys, which are the parameters with the names `kv/APP/KEY`. Everything else that servers do stays as it is: sums,
//! other parameters, and `init` and `assign` of the parameter that a key is.

use std::fmt;
use std::ops::Range;

pub use gradlane_core::types::{DType, WorkerId};

use gradlane_core::reduce::Kernels;

/// What a server does with the keys of `KVWorker`.
///
/// A key begins with zeros. A long value lies in parts, which may lie on several servers, and each part in blocks. So one push of a
/// worker is several calls, each for a range of elements that no other call of this push covers.
///
/// Calls for one range come one after the other. Calls for different ranges may come at the same time on several threads, so what a
/// handle keeps for itself needs locks. A call must not wait for another one: it runs on a thread that serves other keys as well.
///
/// **Failures.** A push that returns an error or panics loses the value of that part, because blocks of it may have been changed already.
/// Every worker that uses the key then gets a `FailedPreconditionError` that names the key, the handle and the problem, until all
/// workers have undeclared the name or a checkpoint is loaded. A pull that fails is an error for its worker alone. Other keys, and other
/// parts, are not affected.
pub trait Handle: Send + Sync + 'static {
    /// How errors call it: by default its type.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Changes `value`, the elements of the key in the range of the request, by the elements that a worker has pushed. By default it adds
    /// them, as ps-lite's `KVServerDefaultHandle` does. Both slices are equally long, and hold elements in the machine's byte order.
    ///
    /// # Errors
    /// Any error. See the trait for what becomes of the value.
    fn push(&self, request: &Request, value: &mut [u8], pushed: &[u8]) -> Result<(), Failure> {
        request.add(value, pushed);
        Ok(())
    }

    /// What a pull gets in place of `value`, equally long. By default `None`: the value itself, which is not copied. A push_pull pulls after
    /// it has pushed.
    ///
    /// # Errors
    /// Any error. The value stays as it is.
    fn pull(&self, request: &Request, value: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let _ = (request, value);
        Ok(None)
    }
}

impl fmt::Debug for dyn Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a handle cannot do a request; a text does: `Err("the key is read-only".into())`.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The handle that adds, as ps-lite's `KVServerDefaultHandle`. A server without a handle does the same and is faster.
#[derive(Clone, Copy, Default, Debug)]
pub struct DefaultHandle;

impl Handle for DefaultHandle {}

/// What one call of a [`Handle`] is about.
#[derive(Clone, Debug)]
pub struct Request {
    /// Whose request it is.
    pub worker: WorkerId,
    /// The app of its `KVWorker`.
    pub app: u64,
    /// The key.
    pub key: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// Which elements of the key's value this call is about.
    pub elements: Range<u64>,
    kernels: Kernels,
}

impl Request {
    /// A request, for tests of a handle.
    pub fn new(worker: WorkerId, (app, key): (u64, u64), dtype: DType, elements: Range<u64>) -> Self {
        Self { worker, app, key, dtype, elements, kernels: Kernels::detect() }
    }

    /// Adds `pushed` to `value`, as a server without a handle does: integers wrap, 16-bit floats are added in f32 and rounded once.
    ///
    /// # Panics
    /// If the slices are not equally long, or do not hold whole elements.
    pub fn add(&self, value: &mut [u8], pushed: &[u8]) {
        self.kernels.add_elements(self.dtype, pushed, value, |bytes| vec![0; bytes]);
    }

    /// Sets each element of `value` to what `change` makes of it and of the element that was pushed.
    ///
    /// # Errors
    /// The key has another type than `T`.
    ///
    /// # Panics
    /// If the slices are not equally long, or do not hold whole elements.
    pub fn update<T: Element>(
        &self,
        value: &mut [u8],
        pushed: &[u8],
        mut change: impl FnMut(T, T) -> T,
    ) -> Result<(), Failure> {
        if T::DTYPE != self.dtype {
            return Err(format!("key {} of app {} is {}, not {}", self.key, self.app, self.dtype, T::DTYPE).into());
        }
        assert_eq!(value.len(), pushed.len(), "a value and what is pushed to it are equally long");
        let bytes = size_of::<T>();
        assert_eq!(value.len() % bytes, 0, "whole elements");
        for (value, pushed) in value.chunks_exact_mut(bytes).zip(pushed.chunks_exact(bytes)) {
            change(T::read(value), T::read(pushed)).write(value);
        }
        Ok(())
    }
}

/// A type of elements that Rust has.
pub trait Element: Copy {
    /// Its name on the wire.
    const DTYPE: DType;
    /// The element with these bytes.
    fn read(bytes: &[u8]) -> Self;
    /// Writes its bytes.
    fn write(self, bytes: &mut [u8]);
}

macro_rules! elements {
    ($($type:ty: $dtype:ident),*) => {
        $(impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            fn read(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the bytes of one element"))
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        })*
    };
}

elements!(f32: F32, f64: F64, i32: I32, i64: I64, i8: I8, u8: U8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_pushes_are_added_and_pulls_get_the_value() {
        let request = Request::new(WorkerId(0), (0, 7), DType::I32, 0..2);
        let mut value = bytes([1, 2]);
        DefaultHandle.push(&request, &mut value, &bytes([10, i32::MAX])).unwrap();
        assert_eq!(value, bytes([11, i32::MIN + 1]), "integers wrap");
        assert!(DefaultHandle.pull(&request, &value).unwrap().is_none());
        assert!(DefaultHandle.name().ends_with("DefaultHandle"));
    }

    #[test]
    fn an_update_is_of_elements_of_the_keys_type() {
        let request = Request::new(WorkerId(0), (3, 7), DType::I32, 0..2);
        let mut value = bytes([1, 20]);
        request.update(&mut value, &bytes([10, 2]), i32::max).unwrap();
        assert_eq!(value, bytes([10, 20]));
        let refused = request.update(&mut value, &bytes([0, 0]), f32::max).unwrap_err();
        assert_eq!(refused.to_string(), "key 7 of app 3 is int32, not float32");
    }

    #[test]
    fn halves_are_added_in_single_precision() {
        let request = Request::new(WorkerId(0), (0, 0), DType::BF16, 0..1);
        let mut value = 0x3f80_u16.to_ne_bytes();
        request.add(&mut value, &0x4000_u16.to_ne_bytes());
        assert_eq!(u16::from_ne_bytes(value), 0x4040, "1 + 2 = 3");
    }

    fn bytes(elements: [i32; 2]) -> Vec<u8> {
        elements.map(i32::to_ne_bytes).concat()
    }
}
