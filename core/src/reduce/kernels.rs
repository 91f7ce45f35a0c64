//! Chooses the vector instructions of the loops. The choice is made once, by asking the processor, and is stored in a value.
//!
//! The loops exist once (`passes`) and are compiled once for every entry of [`Isa`]; the compiler makes the vectors. On aarch64 NEON
//! belongs to the base instruction set, so there the portable loops are the NEON loops.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::f16c;
use super::passes::Pass;
use crate::types::DType;

/// The fastest compiled loops for this processor. Its methods, in the parent module, are the reductions.
///
/// All kernels give the same bits for the same calls, except for the payload of a NaN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernels {
    // Private, and set only after asking the processor. This makes `run` sound.
    isa: Isa,
}

/// Instruction sets beyond the one that the whole program is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Isa {
    /// The instructions that the target guarantees: SSE2 on x86-64, NEON on aarch64.
    Portable,
    /// AVX2 with F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Kernels {
    /// The kernels with the widest vectors that this processor has.
    pub fn detect() -> Self {
        *Self::all().last().expect("the portable kernels are always there")
    }

    /// The kernels that run on every processor.
    pub const fn portable() -> Self {
        Self { isa: Isa::Portable }
    }

    /// All that this processor can run, the portable ones first, the widest last.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::portable()];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
                all.push(Self { isa: Isa::Avx2 });
            }
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                all.push(Self { isa: Isa::Avx512 });
            }
        }
        all
    }

    /// The instruction set, such as `avx512`, for logs.
    pub const fn name(self) -> &'static str {
        match self.isa {
            Isa::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }

    #[expect(unsafe_code, reason = "calls a function that is compiled for more than the target guarantees")]
    pub(super) fn run(self, dtype: DType, pass: Pass<'_>) {
        #[cfg(target_arch = "x86_64")]
        let pass = match (self.isa, dtype) {
            // SAFETY: `all` made this value after the processor said that it has AVX2 and F16C.
            (Isa::Avx2, DType::F16) => unsafe { f16c::vectors(pass) },
            _ => pass,
        };
        self.vectorise(Reduction { dtype, pass });
    }

    /// Runs loops that are compiled for these vectors.
    #[expect(unsafe_code, reason = "calls functions that are compiled for more than the target guarantees")]
    pub(crate) fn vectorise<L: Loops>(self, loops: L) -> L::Output {
        match self.isa {
            Isa::Portable => loops.run(),
            // SAFETY: `all` made this value after the processor said that it has AVX2 and F16C.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { run_avx2(loops) },
            // SAFETY: `all` made this value after the processor said that it has these four parts of AVX-512.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { run_avx512(loops) },
        }
    }
}

/// Loops that the compiler turns into vectors. What they call is marked `#[inline(always)]`, as `run` is: only then is it compiled for the
/// vectors of its caller.
pub(crate) trait Loops {
    /// What they return.
    type Output;

    /// Runs them.
    fn run(self) -> Self::Output;
}

/// A pass of the reductions.
struct Reduction<'a> {
    dtype: DType,
    pass: Pass<'a>,
}

impl Loops for Reduction<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.pass.run(self.dtype);
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn run_avx2<L: Loops>(loops: L) -> L::Output {
    loops.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn run_avx512<L: Loops>(loops: L) -> L::Output {
    loops.run()
}
