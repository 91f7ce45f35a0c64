//! Products of matrices, and how Muon makes a matrix nearly orthogonal by them.
//!
//! A matrix is a row of elements, row by row. The order of the additions is fixed, so the result is the same with all kernels.

use super::run::Real;
use crate::reduce::kernels::{Kernels, Loops};

/// A polynomial of degree 5 whose repetition brings singular values in (0, 1] near 1: Muon's coefficients.
const POLYNOMIAL: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// How often it is repeated.
const REPEATED: usize = 5;

/// How many numbers [`orthogonalise`] needs for each element, at most, besides the matrix.
pub(super) const WORKING_ROWS: usize = 5;

/// Numbers that are added apart from each other, and whose sums are added at the end.
const LANES: usize = 16;

/// Rows of the second matrix that meet all rows of the first one at a time: they stay in the second cache.
const TILE: usize = 32;

/// Brings all singular values of a matrix near 1, by Newton-Schulz iterations.
pub(super) fn orthogonalise<R: Real>(kernels: Kernels, rows: usize, eps: R, matrix: &mut [R]) {
    let columns = matrix.len() / rows;
    let (short, long) = (rows.min(columns), rows.max(columns));
    let mut wide = if rows > columns { transposed(matrix, rows) } else { matrix.to_vec() };
    let squares = wide.chunks(long).fold(R::default(), |sum, row| sum + dot(row, row));
    let norm = squares.sqrt().max(eps);
    wide.iter_mut().for_each(|element| *element = *element / norm);
    let [linear, cubic, quintic] = POLYNOMIAL.map(R::of);
    let (mut gram, mut factor) = (vec![R::default(); short * short], vec![R::default(); short * short]);
    let mut along = vec![R::default(); wide.len()];
    for _ in 0..REPEATED {
        kernels.vectorise(Products { left: &wide, right: &wide, inner: long, out: &mut gram });
        kernels.vectorise(Products { left: &gram, right: &gram, inner: short, out: &mut factor });
        for (factor, gram) in factor.iter_mut().zip(&gram) {
            *factor = cubic * *gram + quintic * *factor;
        }
        let tall = transposed(&wide, short);
        kernels.vectorise(Products { left: &factor, right: &tall, inner: short, out: &mut along });
        wide.iter_mut().zip(&along).for_each(|(element, along)| *element = linear * *element + *along);
    }
    match rows > columns {
        true => matrix.copy_from_slice(&transposed(&wide, short)),
        false => matrix.copy_from_slice(&wide),
    }
}

fn transposed<R: Real>(matrix: &[R], rows: usize) -> Vec<R> {
    let columns = matrix.len() / rows;
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

/// Sums up the products of elements that stand at the same place.
#[inline(always)]
fn dot<R: Real>(one: &[R], other: &[R]) -> R {
    let ((ones, last_ones), (others, last_others)) = (one.as_chunks::<LANES>(), other.as_chunks::<LANES>());
    let mut sums = [R::default(); LANES];
    for (one, other) in ones.iter().zip(others) {
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            *sum = *sum + *one * *other;
        }
    }
    let last = last_ones.iter().zip(last_others).fold(R::default(), |sum, (one, other)| sum + *one * *other);
    sums.into_iter().fold(last, |sum, lane| sum + lane)
}

/// The products of all pairs of a row of one matrix and a row of another one, which both have `inner` elements.
struct Products<'a, R> {
    left: &'a [R],
    right: &'a [R],
    inner: usize,
    out: &'a mut [R],
}

impl<R: Real> Loops for Products<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { left, right, inner, out } = self;
        let width = right.len() / inner;
        for (tile, others) in right.chunks(TILE * inner).enumerate() {
            for (one, out) in left.chunks(inner).zip(out.chunks_mut(width)) {
                for (other, out) in others.chunks(inner).zip(&mut out[tile * TILE..]) {
                    *out = dot(one, other);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, from its definition.
    fn expected(matrix: &[f64], rows: usize) -> Vec<f64> {
        let columns = matrix.len() / rows;
        let times = |left: &[f64], right: &[f64], inner: usize| -> Vec<f64> {
            let (height, width) = (left.len() / inner, right.len() / inner);
            let at = |i: usize, j: usize| (0..inner).map(|p| left[i * inner + p] * right[p * width + j]).sum();
            (0..height).flat_map(|i| (0..width).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect()
        };
        let norm = matrix.iter().map(|element| element * element).sum::<f64>().sqrt();
        let mut x: Vec<f64> = matrix.iter().map(|element| element / norm).collect();
        for _ in 0..5 {
            let gram = times(&x, &transposed(&x, rows), columns);
            let square = times(&gram, &gram, rows);
            let factor: Vec<f64> = gram.iter().zip(&square).map(|(one, two)| -4.775 * one + 2.0315 * two).collect();
            let along = times(&factor, &x, rows);
            x = x.iter().zip(along).map(|(x, along)| 3.4445 * x + along).collect();
        }
        x
    }

    #[test]
    fn singular_values_are_brought_near_one() {
        for (rows, columns) in [(1, 1), (1, 40), (40, 1), (7, 19), (19, 7), (33, 33), (5, 600)] {
            let element = |i: usize| ((i * 37 + i * i * 11) % 101) as f64 / 50.0 - 1.0;
            let matrix: Vec<f64> = (0..rows * columns).map(element).collect();
            let mut found = matrix.clone();
            orthogonalise(Kernels::detect(), rows, 1e-7, &mut found);
            for (found, expected) in found.iter().zip(expected(&matrix, rows)) {
                assert!((found - expected).abs() < 1e-9, "{rows} x {columns}: {found} {expected}");
            }
        }
    }

    #[test]
    fn all_kernels_make_the_same_matrix() {
        let matrix: Vec<f32> = (0..21 * 530).map(|i| ((i * 37 + i * i % 89) % 101) as f32 - 50.0).collect();
        let of = |kernels| {
            let mut matrix = matrix.clone();
            orthogonalise(kernels, 21, 1e-7, &mut matrix);
            matrix
        };
        let portable = of(Kernels::portable());
        assert!(Kernels::all().into_iter().all(|kernels| of(kernels) == portable));
    }

    #[test]
    fn no_gradient_is_no_direction() {
        let mut matrix = [0.0_f32; 12];
        orthogonalise(Kernels::detect(), 3, 1e-7, &mut matrix);
        assert_eq!(matrix, [0.0; 12]);
    }
}
