//! A list that lies on the stack while it is short: nothing is allocated, and nothing is cleared that is not used.

use std::mem::MaybeUninit;

/// Up to `N` values on the stack, more on the heap.
pub(crate) struct Few<T, const N: usize> {
    near: [MaybeUninit<T>; N],
    /// How many of `near` are there; 0 once `far` is not empty, which then has all values.
    len: usize,
    far: Vec<T>,
}

impl<T, const N: usize> Few<T, N> {
    #[inline]
    pub(crate) const fn new() -> Few<T, N> {
        Few { near: [const { MaybeUninit::uninit() }; N], len: 0, far: Vec::new() }
    }

    /// One more, at the end.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        match self.near.get_mut(self.len) {
            Some(slot) if self.far.is_empty() => {
                slot.write(value);
                self.len += 1;
            }
            _ => self.push_far(value),
        }
    }

    #[cold]
    fn push_far(&mut self, value: T) {
        let near = self.near.get(..std::mem::take(&mut self.len)).unwrap_or_default();
        // SAFETY: `push` has written the first `len` of them, and with the length taken nobody looks at them again.
        self.far.extend(near.iter().map(|slot| unsafe { slot.assume_init_read() }));
        self.far.push(value);
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        if self.far.is_empty() {
            // SAFETY: `push` has written the first `len` of them.
            unsafe { std::slice::from_raw_parts(self.near.as_ptr().cast(), self.len) }
        } else {
            &self.far
        }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        if self.far.is_empty() {
            // SAFETY: as in `as_slice`.
            unsafe { std::slice::from_raw_parts_mut(self.near.as_mut_ptr().cast(), self.len) }
        } else {
            &mut self.far
        }
    }
}

impl<T, const N: usize> Drop for Few<T, N> {
    #[inline]
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            let near = self.near.get_mut(..std::mem::take(&mut self.len)).unwrap_or_default();
            for slot in near {
                // SAFETY: as in `as_slice`, and with the length taken nobody looks at them again.
                unsafe { slot.assume_init_drop() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn each_value_is_dropped_once_near_and_far() {
        for count in [0, 1, 4, 5, 9] {
            let value = Rc::new(());
            let mut few: Few<Rc<()>, 4> = Few::new();
            for _ in 0..count {
                few.push(Rc::clone(&value));
            }
            assert_eq!(Rc::strong_count(&value), count + 1);
            drop(few);
            assert_eq!(Rc::strong_count(&value), 1);
        }
    }

    #[test]
    fn the_values_are_the_same_near_and_far() {
        let mut few: Few<usize, 4> = Few::new();
        assert!(few.as_slice().is_empty());
        for value in 0..10 {
            few.push(value);
            assert_eq!(few.as_slice(), (0..=value).collect::<Vec<_>>());
            assert_eq!(few.far.is_empty(), value < 4);
        }
        for value in few.as_mut_slice() {
            *value *= 2;
        }
        assert_eq!(few.as_slice().last(), Some(&18));
    }
}
