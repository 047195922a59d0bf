//! What reductions do with what.

use crate::unconfirmed::TRUE;

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
pub trait Element: sealed::Sealed + Copy + Send + 'static {
    /// `a op b`; `None` when the operation makes no sense for the type (bits of a float).
    fn combine(op: Reduction, a: Self, b: Self) -> Option<Self>;

    /// Whether the operation makes sense for the type.
    fn allows(op: Reduction) -> bool;
}

mod sealed {
    /// What nobody else can implement.
    pub trait Sealed {}
}

macro_rules! element {
    ($($type:ty, $sum:expr, $product:expr, $zero:expr, |$a:ident, $b:ident| $bits:expr;)*) => { $(
        impl sealed::Sealed for $type {}

        impl Element for $type {
            fn allows(op: Reduction) -> bool {
                Self::combine(op, $zero, $zero).is_some()
            }

            #[inline]
            fn combine(op: Reduction, $a: Self, $b: Self) -> Option<Self> {
                let truth = |it: bool| if it { $zero + TRUE as $type } else { $zero };
                Some(match op {
                    Reduction::Sum => $sum($a, $b),
                    Reduction::Product => $product($a, $b),
                    Reduction::High => if $b > $a { $b } else { $a },
                    Reduction::Low => if $b < $a { $b } else { $a },
                    Reduction::LogicalAnd => truth($a != $zero && $b != $zero),
                    Reduction::LogicalOr => truth($a != $zero || $b != $zero),
                    Reduction::LogicalXor => truth(($a != $zero) != ($b != $zero)),
                    bits => {
                        let with: fn(Reduction, Self, Self) -> Option<Self> = |op, $a, $b| $bits(op);
                        return with(bits, $a, $b);
                    }
                })
            }
        }
    )* };
}

fn no_bits<T>(_: Reduction) -> Option<T> {
    None
}

element! {
    f64, |a, b| a + b, |a, b| a * b, 0.0, |_a, _b| no_bits;
    f32, |a, b| a + b, |a, b| a * b, 0.0, |_a, _b| no_bits;
    i64, i64::wrapping_add, i64::wrapping_mul, 0, |a, b| |op| bits(op, a & b, a | b, a ^ b);
    i32, i32::wrapping_add, i32::wrapping_mul, 0, |a, b| |op| bits(op, a & b, a | b, a ^ b);
}

fn bits<T>(op: Reduction, and: T, or: T, xor: T) -> Option<T> {
    match op {
        Reduction::And => Some(and),
        Reduction::Or => Some(or),
        Reduction::Xor => Some(xor),
        _ => None,
    }
}

#[cfg(all(test, not(vmmc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn operations_combine_as_their_names_say() {
        use Reduction as R;
        assert_eq!(f64::combine(R::Sum, 1.5, 2.0), Some(3.5));
        assert_eq!(f64::combine(R::High, -1.0, 2.0), Some(2.0));
        assert_eq!(f32::combine(R::Low, -1.0, 2.0), Some(-1.0));
        assert_eq!(f64::combine(R::And, 1.0, 1.0), None);
        assert_eq!(i32::combine(R::Sum, i32::MAX, 1), Some(i32::MIN));
        assert_eq!(i64::combine(R::Xor, 6, 3), Some(5));
        assert_eq!(i64::combine(R::And, 6, 3), Some(2));
        assert_eq!(i32::combine(R::LogicalAnd, 6, 1), Some(1));
        assert_eq!(i32::combine(R::LogicalXor, 6, 1), Some(0));
        assert_eq!(i32::combine(R::LogicalOr, 0, 0), Some(0));
    }
}
