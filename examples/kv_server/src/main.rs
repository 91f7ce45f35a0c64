//! A server of one's own: it decides what a push to a key of `KVWorker` does, and what a pull gets. The app of the key says how.
//!
//! ```sh
//! cargo build --release -p kv-server
//! gradlane run -n 2 -s 2 --server-program target/release/kv-server -- python train.py
//! ```
//!
//! It starts as `gradlane-server` does, for example by `DMLC_ROLE=server` and the other variables of ps-lite.

use std::process::ExitCode;

use gradlane_server::handle::{DType, Failure, Handle, Request};

fn main() -> ExitCode {
    gradlane_server::run_server_with(Keys)
}

/// What becomes of keys, by their app. Keys of other apps are added up, as on any server.
#[derive(Debug)]
struct Keys;

/// `KVWorker(app=1)`: the largest element that was ever pushed, or 0. Only float32 and int64; a push of another type is an error.
const MAX: u64 = 1;
/// `KVWorker(app=2)`: a decayed sum of float32. A NaN would stay in it for ever, so it is a panic, which costs no more than its key.
const DECAYED: u64 = 2;
/// `KVWorker(app=3)`: a sum of float32. A pull gets it between -1 and 1.
const CLAMPED: u64 = 3;

const DECAY: f32 = 0.9;

impl Handle for Keys {
    fn push(&self, request: &Request, value: &mut [u8], pushed: &[u8]) -> Result<(), Failure> {
        match request.app {
            MAX if request.dtype == DType::I64 => request.update(value, pushed, i64::max),
            MAX => request.update(value, pushed, f32::max),
            DECAYED => request.update(value, pushed, |value: f32, pushed| {
                assert!(!pushed.is_nan(), "{} has pushed a NaN", request.worker);
                DECAY * value + pushed
            }),
            _ => {
                request.add(value, pushed);
                Ok(())
            }
        }
    }

    fn pull(&self, request: &Request, value: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        if request.app != CLAMPED {
            return Ok(None);
        }
        let mut clamped = vec![0; value.len()];
        request.update(&mut clamped, value, |_, element: f32| element.clamp(-1.0, 1.0))?;
        Ok(Some(clamped))
    }
}
