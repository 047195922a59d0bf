//! Random values of random types, against an XDR that shares nothing with the compiler.

use rpc_idl_tests::random::{defined, definitions, text, Random};
use rpc_idl_tests::{again, COUNT, SEED};

/// F1: complex types, nested to any depth.
#[test]
fn random_values_of_random_types_come_back_as_they_were() {
    let defs = definitions(SEED, COUNT);
    let random = &mut Random::new(SEED + 1);
    let mut tried = 0;
    for round in 0..100 {
        for index in 0..COUNT {
            let mut bytes = Vec::new();
            defined(random, &defs, index, &mut bytes);
            let Some(result) = again(index, &bytes) else { continue };
            assert_eq!(
                result.as_deref(),
                Ok(&bytes[..]),
                "t{index} in round {round}, RPC_IDL_TESTS_SEED={SEED}:\n{}",
                text(&defs)
            );
            tried += 1;
        }
    }
    assert!(tried > 50 * COUNT, "{tried} values were tried");
}

/// What is cut off or changed is refused, or is another value: never a panic.
#[test]
fn damaged_values_are_refused_or_are_other_values() {
    let defs = definitions(SEED, COUNT);
    let random = &mut Random::new(SEED + 2);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..40 {
        for index in 0..COUNT {
            let mut bytes = Vec::new();
            defined(random, &defs, index, &mut bytes);
            if bytes.is_empty() {
                continue;
            }
            let at = random.below(bytes.len() as u64) as usize;
            if random.below(2) == 0 {
                // Every proper prefix misses something.
                bytes.truncate(at);
                if let Some(result) = again(index, &bytes) {
                    assert!(result.is_err(), "t{index}: {bytes:?} is cut off");
                    refused += 1;
                }
                continue;
            }
            bytes[at] ^= 1 << random.below(8);
            match again(index, &bytes) {
                Some(Ok(other)) => {
                    assert_eq!(
                        again(index, &other),
                        Some(Ok(other.clone())),
                        "t{index}: {bytes:?}"
                    );
                    accepted += 1;
                }
                Some(Err(_)) => refused += 1,
                None => {}
            }
        }
    }
    assert!(refused > COUNT && accepted > COUNT, "{refused} refused, {accepted} accepted");
}
