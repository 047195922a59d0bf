//! A test in a process of its own.

/// True in a process that runs this test and nothing else; in any other, such a process has run it when this
/// returns. For tests that do to their process what the others beside them would feel: dispositions of signals,
/// holes in the address space, which anybody's next mapping may fill. `test` is its whole name.
pub(crate) fn alone(test: &str) -> bool {
    const ALONE: &str = "VMMC_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    // Its number is in its environment: what each takes of something they share goes by it.
    static LAST: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = 1 + LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut program = std::process::Command::new(std::env::current_exe().expect("own path"));
    let run = program
        .args(["--exact", test])
        .env(ALONE, number.to_string())
        .output()
        .expect("starts again");
    let said = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains("1 passed"), "{test}: {said}{errors}");
    false
}
