//! Averages of the values that a rule makes: for evaluation, and without any effect on the values.

use std::ops::Range;

use super::run::{Real, towards};
use crate::reduce::element::Element;
use crate::types::{Average, Rule};

/// The sums of a window: of the last values, of those before in blocks of [`FOLDED`], and of the window before.
const SUMS: usize = 3;

/// After so many values their sum is added to that of earlier ones and begins anew, because what is added to a large sum loses its last bits.
/// Old Paddle takes 16,384, with which equal values of float32 have a mean that is off by 1.5e-4 of them after 50,000; with 256 it is 4e-6.
const FOLDED: u64 = 256;

/// The rows of averages: what they are of, and their names.
pub(super) const AVERAGE_ROWS: [(Average, &str); 1 + SUMS] = [
    (Average::Ema, "ema"),
    (Average::Window, "window_last"),
    (Average::Window, "window_earlier"),
    (Average::Window, "window_former"),
];

/// The averages of a part.
#[derive(Clone, Debug)]
pub(super) struct Averages<R> {
    /// The exponential one, if the rule keeps it.
    ema: Vec<R>,
    /// Those of a window, if the rule keeps it.
    sums: [Vec<R>; SUMS],
    /// How many values are in this window, and how many were in the one before.
    pub(super) window: [u64; 2],
}

/// The averages of some elements, empty where the rule does not keep them.
pub(super) struct AverageRows<'a, R> {
    ema: &'a mut [R],
    sums: [&'a mut [R]; SUMS],
}

/// How averages follow one step.
pub(super) struct Follow<R> {
    /// Whether it is the first one.
    is_first: bool,
    /// The share of the value in the next exponential average.
    share: R,
    /// Whether the sum of the last values is added to that of earlier ones.
    folds: bool,
    /// Whether a new window begins.
    closes: bool,
}

/// How many numbers the averages keep for each element.
pub(super) fn average_rows(rule: &Rule) -> usize {
    usize::from(rule.keeps(Average::Ema)) + if rule.keeps(Average::Window) { SUMS } else { 0 }
}

impl<R: Real> Averages<R> {
    pub(super) fn new(rule: &Rule, elements: usize) -> Self {
        let row = |average| vec![R::default(); if rule.keeps(average) { elements } else { 0 }];
        Self { ema: row(Average::Ema), sums: [(); SUMS].map(|()| row(Average::Window)), window: [0; 2] }
    }

    /// The row with this name.
    pub(super) fn row(&self, name: &str) -> &[R] {
        match AVERAGE_ROWS.iter().position(|(_, row)| *row == name) {
            Some(0) | None => &self.ema,
            Some(index) => &self.sums[index - 1],
        }
    }

    /// The same, for writing.
    pub(super) fn row_mut(&mut self, name: &str) -> &mut [R] {
        match AVERAGE_ROWS.iter().position(|(_, row)| *row == name) {
            Some(0) | None => &mut self.ema,
            Some(index) => &mut self.sums[index - 1],
        }
    }

    /// Counts the value of the step with this number, from 1.
    ///
    /// The exponential average e becomes d·e + (1-d)·w, with d = `ema`, or with `ema_ramp` min(`ema`, (1+n)/(10+n)) at step n. A window of n
    /// values closes when n is at least `window_min` (or `window_max`, if that is less), and at least `window_max` or `window` times all steps.
    pub(super) fn follow(&mut self, rule: &Rule, step: u64) -> Follow<R> {
        let (steps, decay) = (step as f64, rule.setting("ema"));
        let ramp = if rule.setting("ema_ramp") == 0.0 { 1.0 } else { (1.0 + steps) / (10.0 + steps) };
        let [shortest, longest] = ["window_min", "window_max"].map(|setting| rule.setting(setting));
        let [values, before] = &mut self.window;
        *values += 1;
        let long = *values as f64;
        let closes = long >= shortest.min(longest) && long >= longest.min(steps * rule.setting("window"));
        if closes {
            (*values, *before) = (0, *values);
        }
        let share = R::of(1.0 - decay.min(ramp));
        Follow { is_first: step == 1, share, folds: step.is_multiple_of(FOLDED), closes }
    }

    /// Those of these elements.
    pub(super) fn of(&mut self, elements: Range<usize>) -> AverageRows<'_, R> {
        let Self { ema, sums, .. } = self;
        AverageRows { ema, sums: sums.each_mut().map(Vec::as_mut_slice) }.run(elements)
    }

    /// Writes an average that the rule keeps into blocks of elements of type `E` that follow each other. Returns the number of elements.
    pub(super) fn write<'a, E: Element<Sum = R>>(
        &self,
        average: Average,
        blocks: impl IntoIterator<Item = &'a mut [u8]>,
    ) -> usize {
        let [values, before] = self.window;
        let (count, [last, earlier, former]) = (R::of((values + before) as f64), &self.sums);
        let mut at = 0;
        for block in blocks {
            for element in E::elements_mut(block) {
                let mean = match average {
                    Average::Ema => self.ema[at],
                    Average::Window => (last[at] + earlier[at] + former[at]) / count,
                };
                *element = E::narrow(mean).store();
                at += 1;
            }
        }
        at
    }
}

impl<R> AverageRows<'_, R> {
    /// Those of some of these elements.
    #[inline(always)]
    pub(super) fn run(self, elements: Range<usize>) -> Self {
        let Self { ema, sums } = self;
        let ema = ema.get_mut(elements.clone()).unwrap_or_default();
        AverageRows { ema, sums: sums.map(|row| row.get_mut(elements.clone()).unwrap_or_default()) }
    }

    /// The same, for a while.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> AverageRows<'_, R> {
        AverageRows { ema: self.ema, sums: self.sums.each_mut().map(|row| &mut **row) }
    }
}

impl<R: Real> Follow<R> {
    /// Before the values change: the exponential average begins with the first ones.
    #[inline(always)]
    pub(super) fn begin(&self, values: &[R], rows: AverageRows<'_, R>) {
        if self.is_first {
            rows.ema.iter_mut().zip(values).for_each(|(average, value)| *average = *value);
        }
    }

    /// After the values have changed.
    #[inline(always)]
    pub(super) fn change(&self, values: &[R], rows: AverageRows<'_, R>) {
        let AverageRows { ema, sums: [last, earlier, former] } = rows;
        ema.iter_mut().zip(values).for_each(|(average, value)| *average = towards(*average, *value, self.share));
        for (((value, last), earlier), former) in values.iter().zip(last).zip(earlier).zip(former) {
            *last = *last + *value;
            if self.folds {
                (*earlier, *last) = (*earlier + *last, R::default());
            }
            if self.closes {
                (*former, *earlier, *last) = (*last + *earlier, R::default(), R::default());
            }
        }
    }
}

#[cfg(test)]
impl<R> Averages<R> {
    pub(super) fn len(&self) -> usize {
        self.ema.len() + self.sums.iter().map(Vec::len).sum::<usize>()
    }
}
