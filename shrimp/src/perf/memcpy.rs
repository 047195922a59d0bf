//! Bandwidth of one memcpy: the limit of everything that moves bytes by processor.

use crate::exit::{Context, Io};
use crate::shm::Shared;
use std::hint::black_box;
use std::time::Duration;

/// Bytes per second of copies of one size.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Copy {
    /// Bytes per copy.
    pub(crate) bytes: u64,
    /// From private memory to private memory.
    pub(crate) private_bytes_per_s: f64,
    /// From private memory to a shared memory file.
    pub(crate) shared_bytes_per_s: f64,
}

/// Sizes from `from` to `to`, doubling.
pub(crate) fn sizes(from: u64, to: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(from), |size| size.checked_mul(2))
        .take_while(move |&size| size <= to)
}

/// Measures every size, about `window` each; tells `progress` the size it is at.
pub(crate) fn sweep(
    sizes: impl Iterator<Item = u64>,
    window: Duration,
    mut progress: impl FnMut(u64),
) -> Result<Vec<Copy>, Io> {
    let mut results = Vec::new();
    for bytes in sizes {
        progress(bytes);
        let len = bytes as usize;
        let source = vec![0x5au8; len];
        let mut target = vec![0u8; len];
        let memory =
            vmmc::sys::memfd::create("memcpy", bytes).context(|| "making a memory file".into())?;
        let shared = Shared::map(&memory, len)?;
        // Short copies are repeated within one reading of the clock.
        let repeat = (262_144 / len.max(1)).max(1) as u32;
        let per_second =
            |time: Duration| f64::from(repeat) * bytes as f64 / time.as_secs_f64().max(1e-9);
        let private = super::peer::time_of(window, || {
            for _ in 0..repeat {
                black_box(&mut target[..]).copy_from_slice(black_box(&source));
            }
        });
        let view = shared.view();
        let to_shared = super::peer::time_of(window, || {
            for _ in 0..repeat {
                // In bounds: the mapping is at least `len` long.
                let _ = view.write(0, black_box(&source));
            }
        });
        results.push(Copy {
            bytes,
            private_bytes_per_s: per_second(private),
            shared_bytes_per_s: per_second(to_shared),
        });
    }
    Ok(results)
}
