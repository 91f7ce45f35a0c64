//! Rows and gradients of tables as they travel: each row by itself. See [`RowForm`].

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::reduce::{Kernels, Loops};
use crate::types::{DType, RowForm, TableSpec};

/// Writes and reads rows of a table.
#[derive(Clone, Copy, Debug)]
pub struct RowCodec {
    form: RowForm,
    dim: usize,
    row_bytes: usize,
    kernels: Kernels,
}

/// Elements that are converted at a time, on the stack.
const RUN: usize = 64;

impl RowCodec {
    /// That of the rows of this table.
    pub fn of(spec: &TableSpec, kernels: Kernels) -> Self {
        let [dim, row_bytes] = [spec.dim, spec.row_bytes()].map(|number| usize::try_from(number).expect("DIM_MAX"));
        Self { form: spec.form, dim, row_bytes, kernels }
    }

    /// The elements of a row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// What it computes with.
    pub fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// Whether finite numbers of a row stay finite on their way.
    pub fn holds(&self, row: &[f32]) -> bool {
        match self.form {
            RowForm::F32 | RowForm::Int8 => true,
            RowForm::BF16 => row.iter().all(|number| bf16::from_f32(*number).is_finite()),
            RowForm::F16 => row.iter().all(|number| f16::from_f32(*number).is_finite()),
        }
    }

    /// Whether all numbers of rows are finite, as [`read`](Self::read) would read them.
    ///
    /// # Panics
    /// If they are not whole rows.
    pub fn all_finite(&self, rows: &[u8]) -> bool {
        assert_eq!(rows.len() % self.row_bytes, 0, "rows of the table");
        match self.form {
            RowForm::F32 => self.kernels.all_finite(DType::F32, rows),
            RowForm::BF16 => self.kernels.all_finite(DType::BF16, rows),
            RowForm::F16 => self.kernels.all_finite(DType::F16, rows),
            RowForm::Int8 => rows.chunks_exact(self.row_bytes).all(|row| {
                let (scale, codes) = row.split_first_chunk().expect("a scale");
                let scale = f32::from_le_bytes(*scale);
                codes.iter().fold(true, |all, code| all & (f32::from(*code as i8) * scale).is_finite())
            }),
        }
    }

    /// Writes a row.
    ///
    /// # Panics
    /// If one of them has another length.
    #[inline]
    pub fn write(&self, row: &[f32], to: &mut [u8]) {
        assert_eq!((row.len(), to.len()), (self.dim, self.row_bytes), "a row of the table");
        match self.form {
            RowForm::F32 => {
                to.as_chunks_mut().0.iter_mut().zip(row).for_each(|(to, number)| *to = number.to_le_bytes())
            }
            RowForm::BF16 => write_halves(row, to, bf16::to_le_bytes),
            RowForm::F16 => write_halves(row, to, f16::to_le_bytes),
            RowForm::Int8 => self.kernels.vectorise(Quantise { row, to }),
        }
    }

    /// Reads a row.
    ///
    /// # Panics
    /// If one of them has another length.
    #[inline]
    pub fn read(&self, from: &[u8], row: &mut [f32]) {
        assert_eq!((row.len(), from.len()), (self.dim, self.row_bytes), "a row of the table");
        match self.form {
            RowForm::F32 => {
                row.iter_mut().zip(from.as_chunks().0).for_each(|(number, from)| *number = f32::from_le_bytes(*from));
            }
            RowForm::BF16 => {
                row.iter_mut()
                    .zip(from.as_chunks().0)
                    .for_each(|(number, from)| *number = bf16::from_le_bytes(*from).to_f32());
            }
            RowForm::F16 => {
                let mut halves = [f16::ZERO; RUN];
                for (row, from) in row.chunks_mut(RUN).zip(from.chunks(2 * RUN)) {
                    halves
                        .iter_mut()
                        .zip(from.as_chunks().0)
                        .for_each(|(half, from)| *half = f16::from_le_bytes(*from));
                    halves[..row.len()].convert_to_f32_slice(row);
                }
            }
            RowForm::Int8 => self.kernels.vectorise(Dequantise { from, row }),
        }
    }
}

/// Writes a row as elements of 2 bytes, converted a run at a time.
#[inline]
fn write_halves<H: Copy + Default>(row: &[f32], to: &mut [u8], bytes_of: impl Fn(H) -> [u8; 2])
where
    [H]: HalfFloatSliceExt,
{
    let mut halves = [H::default(); RUN];
    for (row, to) in row.chunks(RUN).zip(to.chunks_mut(2 * RUN)) {
        halves[..row.len()].convert_from_f32_slice(row);
        to.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(to, half)| *to = bytes_of(half));
    }
}

struct Quantise<'a> {
    row: &'a [f32],
    to: &'a mut [u8],
}

impl Loops for Quantise<'_> {
    type Output = ();

    /// A row with a NaN or an infinity gets such a scale, so that nobody takes its elements for numbers.
    #[inline(always)]
    fn run(self) {
        let Self { row, to } = self;
        let (scale_at, codes) = to.split_first_chunk_mut().expect("a scale");
        let is_finite = row.iter().all(|number| number.is_finite());
        let largest = row.iter().fold(0.0f32, |largest, number| largest.max(number.abs()));
        let scale = if is_finite { largest / 127.0 } else { f32::NAN };
        *scale_at = scale.to_le_bytes();
        // Not a multiplication by 1 / scale, which is infinite of a small scale. What is no number becomes 0.
        let scale = if scale > 0.0 { scale } else { 1.0 };
        for (code, number) in codes.iter_mut().zip(row) {
            *code = (number / scale).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
        }
    }
}

struct Dequantise<'a> {
    from: &'a [u8],
    row: &'a mut [f32],
}

impl Loops for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (scale, codes) = self.from.split_first_chunk().expect("a scale");
        let scale = f32::from_le_bytes(*scale);
        self.row.iter_mut().zip(codes).for_each(|(number, code)| *number = f32::from(*code as i8) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travelled(codec: &str, row: &[f32]) -> Vec<f32> {
        let spec: TableSpec = format!("sgd;dim={},codec={codec}", row.len()).parse().unwrap();
        let codec = RowCodec::of(&spec, Kernels::detect());
        let (mut body, mut came) = (vec![0xff; codec.row_bytes()], vec![9.0; row.len()]);
        codec.write(row, &mut body);
        codec.read(&body, &mut came);
        came
    }

    #[test]
    fn rows_of_any_length_come_as_their_form_has_them() {
        for dim in [1, 3, 16, 63, 64, 65, 200] {
            let row: Vec<f32> = (0..dim).map(|at| (at as f32 - 7.3) * 0.37).collect();
            assert_eq!(travelled("none", &row), row);
            assert_eq!(travelled("bf16", &row), row.iter().map(|x| bf16::from_f32(*x).to_f32()).collect::<Vec<_>>());
            assert_eq!(travelled("fp16", &row), row.iter().map(|x| f16::from_f32(*x).to_f32()).collect::<Vec<_>>());
            let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let came = travelled("int8", &row);
            assert!(row.iter().zip(came).all(|(x, came)| (x - came).abs() <= largest / 127.0 * 0.501), "{dim}");
        }
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_becomes_no_number() {
        assert_eq!(travelled("int8", &[0.0, -0.0]), [0.0, 0.0]);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(travelled("int8", &[1.0, odd]).iter().all(|number| number.is_nan()));
            for codec in ["none", "bf16", "fp16"] {
                let came = travelled(codec, &[1.0, odd]);
                assert!(came[0] == 1.0 && (came[1] == odd || odd.is_nan() && came[1].is_nan()), "{codec}: {came:?}");
            }
        }
    }

    #[test]
    fn what_a_form_cannot_hold_is_known_before() {
        let holds = |codec: &str, number: f32| {
            let spec: TableSpec = format!("sgd;dim=1,codec={codec}").parse().unwrap();
            RowCodec::of(&spec, Kernels::portable()).holds(&[number])
        };
        assert!(holds("fp16", 65_504.0) && !holds("fp16", 1e5));
        assert!(holds("bf16", 3.3e38) && !holds("bf16", f32::MAX));
        assert!(holds("none", f32::MAX) && holds("int8", f32::MAX));
    }

    #[test]
    fn rows_that_are_not_finite_are_found_before_they_are_read() {
        let of = |codec: &str, numbers: &[f32]| {
            let spec: TableSpec = format!("sgd;dim=3,codec={codec}").parse().unwrap();
            let codec = RowCodec::of(&spec, Kernels::detect());
            let mut body = vec![0; numbers.len() / 3 * codec.row_bytes()];
            numbers.chunks(3).zip(body.chunks_mut(codec.row_bytes())).for_each(|(row, to)| codec.write(row, to));
            codec.all_finite(&body)
        };
        for codec in ["none", "bf16", "fp16", "int8"] {
            assert!(of(codec, &[1.0, -2.0, 0.0, 6e4, 1e-40, -6e4]) && of(codec, &[]), "{codec}");
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(!of(codec, &[1.0, 2.0, 3.0, 4.0, odd, 5.0]), "{codec}: {odd}");
            }
        }
        // A scale that is finite, and makes a number that is not.
        let spec: TableSpec = "sgd;dim=3,codec=int8".parse().unwrap();
        let row = [&f32::MAX.to_le_bytes()[..], &[1, 0, 2]].concat();
        assert!(!RowCodec::of(&spec, Kernels::detect()).all_finite(&row));
    }

    #[test]
    fn the_largest_elements_of_a_row_keep_their_place() {
        assert_eq!(travelled("int8", &[127.0, -127.0, 1.0, 0.4, 63.5]), [127.0, -127.0, 1.0, 0.0, 64.0]);
        let small = [3e-37, 1e-38, 1e-39, 0.0];
        let close = |(number, came): (&f32, f32)| (number - came).abs() <= 3e-37 / 250.0;
        assert!(small.iter().zip(travelled("int8", &small)).all(close));
        let tiny = f32::from_bits(3);
        assert!(travelled("int8", &[tiny, -tiny]).iter().all(|number| number.abs() <= tiny));
    }
}
