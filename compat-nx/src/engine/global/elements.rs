//! What reductions do with what.
#![allow(unsafe_code)] // raw memory of callers; each block has its proof

use crate::unconfirmed::TRUE;
use std::ops::{BitAnd, BitOr, BitXor};

/// Binary operations of the global reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// `g?sum`.
    Sum,
    /// `g?prod`.
    Product,
    /// `g?high`.
    High,
    /// `g?low`.
    Low,
    /// `giand`.
    And,
    /// `gior`.
    Or,
    /// `gixor`.
    Xor,
    /// `gland`.
    LogicalAnd,
    /// `glor`.
    LogicalOr,
    /// `glxor`.
    LogicalXor,
}

/// What reductions work on: numbers of which all bits are values, since other processes say them; no other types can be.
/// `i64` is C's `long`, `i32` Fortran's INTEGER and LOGICAL.
pub trait Element: sealed::Operand + Copy + Send + 'static {
    /// Whether the operation makes sense for the type: bits of a float do not.
    fn allows(op: Reduction) -> bool;
}

mod sealed {
    use super::{Pairs, Reduction};

    /// What nobody else can implement.
    pub trait Operand: Sized {
        /// `a op b` of all pairs; nothing when the operation is not allowed.
        fn combine(op: Reduction, pairs: &mut Pairs<Self>);
    }
}

/// The elements of two vectors, of any alignment; results come into the first.
pub struct Pairs<T> {
    x: *mut T,
    work: *const T,
    n: usize,
}

impl<T: Element> Pairs<T> {
    /// # Safety
    /// `n` elements can be read and written at `x`, and read at `work`, and nobody else uses them as long as this lives. Both may
    /// be the same.
    pub(super) unsafe fn new(x: *mut T, work: *const T, n: usize) -> Pairs<T> {
        Pairs { x, work, n }
    }

    pub(super) fn combine(mut self, op: Reduction) {
        T::combine(op, &mut self);
    }

    /// A loop per operation, so that the compiler makes vectors of each.
    #[inline]
    fn each(&mut self, with: impl Fn(T, T) -> T) {
        for i in 0..self.n {
            let (x, work) = (self.x.wrapping_add(i), self.work.wrapping_add(i));
            // SAFETY: i < n elements, by the word of who made this; any alignment.
            let a = unsafe { x.read_unaligned() };
            // SAFETY: as above.
            let b = unsafe { work.read_unaligned() };
            // SAFETY: as above.
            unsafe { x.write_unaligned(with(a, b)) };
        }
    }
}

macro_rules! element {
    ($($type:ty, $sum:expr, $product:expr, $zero:expr, $bits:expr;)*) => { $(
        impl sealed::Operand for $type {
            fn combine(op: Reduction, pairs: &mut Pairs<Self>) {
                let truth = |it: bool| if it { $zero + TRUE as $type } else { $zero };
                match op {
                    Reduction::Sum => pairs.each($sum),
                    Reduction::Product => pairs.each($product),
                    Reduction::High => pairs.each(|a, b| if b > a { b } else { a }),
                    Reduction::Low => pairs.each(|a, b| if b < a { b } else { a }),
                    Reduction::LogicalAnd => pairs.each(|a, b| truth(a != $zero && b != $zero)),
                    Reduction::LogicalOr => pairs.each(|a, b| truth(a != $zero || b != $zero)),
                    Reduction::LogicalXor => pairs.each(|a, b| truth((a != $zero) != (b != $zero))),
                    Reduction::And | Reduction::Or | Reduction::Xor => {
                        let bits: Option<fn(Reduction, &mut Pairs<Self>)> = $bits;
                        if let Some(bits) = bits {
                            bits(op, pairs);
                        }
                    }
                }
            }
        }

        impl Element for $type {
            fn allows(op: Reduction) -> bool {
                let bits: Option<fn(Reduction, &mut Pairs<Self>)> = $bits;
                bits.is_some() || !matches!(op, Reduction::And | Reduction::Or | Reduction::Xor)
            }
        }
    )* };
}

element! {
    f64, |a, b| a + b, |a, b| a * b, 0.0, None;
    f32, |a, b| a + b, |a, b| a * b, 0.0, None;
    i64, i64::wrapping_add, i64::wrapping_mul, 0, Some(bits);
    i32, i32::wrapping_add, i32::wrapping_mul, 0, Some(bits);
}

fn bits<T>(op: Reduction, pairs: &mut Pairs<T>)
where
    T: Element + BitAnd<Output = T> + BitOr<Output = T> + BitXor<Output = T>,
{
    match op {
        Reduction::And => pairs.each(|a, b| a & b),
        Reduction::Or => pairs.each(|a, b| a | b),
        _ => pairs.each(|a, b| a ^ b),
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    fn of<T: Element>(op: Reduction, mut a: T, b: T) -> T {
        // SAFETY: one element each, here.
        unsafe { Pairs::new(&raw mut a, &raw const b, 1) }.combine(op);
        a
    }

    #[test]
    fn operations_combine_as_their_names_say() {
        use Reduction as R;
        assert_eq!(of::<f64>(R::Sum, 1.5, 2.0), 3.5);
        assert_eq!(of::<f64>(R::High, -1.0, 2.0), 2.0);
        assert_eq!(of::<f32>(R::Low, -1.0, 2.0), -1.0);
        assert!(!f64::allows(R::And) && i64::allows(R::And) && f32::allows(R::LogicalAnd));
        assert_eq!(of::<i32>(R::Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(of::<i64>(R::Xor, 6, 3), 5);
        assert_eq!(of::<i64>(R::And, 6, 3), 2);
        assert_eq!(of::<i32>(R::LogicalAnd, 6, 1), 1);
        assert_eq!(of::<i32>(R::LogicalXor, 6, 1), 0);
        assert_eq!(of::<i32>(R::LogicalOr, 0, 0), 0);
    }
}
