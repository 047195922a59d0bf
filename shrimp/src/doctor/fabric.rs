//! libfabric and its providers, by which nodes may reach each other.

use super::Finding;
use vmmc::fabric::{self, FabricError, Provider};

const FABRIC: &str = "Other nodes";

/// Providers that carry bytes over TCP, or within the machine: no hardware.
const SOFTWARE: &[&str] = &["tcp", "net", "sockets", "udp", "shm", "sm2"];

/// What stands in for hardware, or is deprecated, would only be slower than our own packets over TCP.
fn is_hardware(provider: &Provider) -> bool {
    provider.name.split(';').all(|part| !SOFTWARE.contains(&part))
}

/// Whether packets can go over a provider that offers what they need: `udp` and `shm` were tried (libfabric 1.17), and have no
/// descriptor to wait by; `sm2` is of one machine, as `shm` is.
fn is_fit(name: &str) -> bool {
    name.split(';').all(|part| !["udp", "shm", "sm2"].contains(&part))
}

/// Slingshot's: see DESIGN.md, "Which providers".
fn is_cxi(provider: &Provider) -> bool {
    provider.name.split(';').any(|part| part == "cxi")
}

/// All findings. Opens nothing: asks libfabric, if it is there, what it could use.
pub(super) fn findings() -> Vec<Finding> {
    judge(fabric::providers())
}

fn judge(asked: Result<((u32, u32), Vec<Provider>), FabricError>) -> Vec<Finding> {
    let found = |what: &str, text: String| Finding::info(FABRIC, what, text);
    let ((major, minor), providers) = match asked {
        Ok(asked) => asked,
        Err(error @ FabricError::Missing { .. }) => {
            let text =
                format!("not used; packets go over TCP ({error}, if there is RDMA hardware)");
            return vec![found("libfabric", text)];
        }
        Err(error) => {
            return vec![found("libfabric", format!("offers nothing of use ({error})"))];
        }
    };
    let mut all = vec![found("libfabric", format!("version {major}.{minor}"))];
    let names = |fit: bool| {
        let mut names: Vec<&str> = Vec::new();
        for provider @ Provider { name, .. } in &providers {
            let is_offered = is_fit(name) == fit && !(fit && is_cxi(provider));
            if is_offered && !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names.join(" ")
    };
    let others = match names(false) {
        unfit if unfit.is_empty() => String::new(),
        unfit => format!("; not {unfit}, by which nobody can wait for packets"),
    };
    all.push(found(
        "providers",
        format!("{}; any of them may stand in [fabric] of the cluster file{others}", names(true)),
    ));
    if let Some(Provider { domain, .. }) = providers.iter().find(|provider| is_cxi(provider)) {
        all.push(found(
            "cxi",
            format!("is on {domain}; packets over it were never tried. Leave FI_CXI_ENABLE_WRITEDATA unset: they are told of by messages then"),
        ));
    }
    match providers.iter().find(|provider| is_hardware(provider) && !is_cxi(provider)) {
        None => all.push(found(
            "hardware",
            "none that libfabric can use: packets over TCP (the default) are faster than any of these".to_owned(),
        )),
        Some(Provider { name, domain }) => {
            all.push(Finding::ok(
                FABRIC,
                "hardware",
                format!("{name} on {domain}; write `[fabric]` and `provider = {name:?}` into the cluster file of every node"),
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(providers: &[(&str, &str)]) -> String {
        let provider = |&(name, domain): &(&str, &str)| Provider {
            name: name.to_owned(),
            domain: domain.to_owned(),
        };
        let asked = Ok(((1, 17), providers.iter().map(provider).collect()));
        let found = judge(asked);
        found.iter().map(|it| format!("{}: {}\n", it.what, it.found)).collect()
    }

    #[test]
    fn hardware_is_told_from_what_stands_in_for_it() {
        let software = [
            ("tcp;ofi_rxm", "eth0"),
            ("udp;ofi_rxd", "lo"),
            ("net", "eth0"),
            ("net", "lo"),
            ("sockets", "lo"),
        ];
        let text = texts(&software);
        assert!(
            text.contains("version 1.17")
                && text.contains("tcp;ofi_rxm net sockets;")
                && text.contains("not udp;ofi_rxd,"),
            "{text}"
        );
        assert!(text.contains("hardware: none"), "{text}");
        let both = [("verbs;ofi_rxm", "mlx5_0"), ("net", "eth0")];
        let text = texts(&both);
        assert!(text.contains("provider = \"verbs;ofi_rxm\""), "{text}");
    }

    #[test]
    fn slingshot_is_told_of_and_not_recommended() {
        let text = texts(&[("cxi", "cxi0"), ("net", "eth0")]);
        assert!(text.contains("is on cxi0") && text.contains("FI_CXI_ENABLE_WRITEDATA"), "{text}");
        assert!(text.contains("providers: net;") && text.contains("hardware: none"), "{text}");
        let text = texts(&[("cxi", "cxi0"), ("verbs;ofi_rxm", "mlx5_0")]);
        assert!(text.contains("provider = \"verbs;ofi_rxm\""), "{text}");
    }

    #[test]
    fn without_the_library_nothing_needs_attention_and_the_package_is_named() {
        let missing = FabricError::Missing { why: "no such file".to_owned() };
        let found = judge(Err(missing));
        assert!(found.iter().all(|it| it.remedy.is_none() && it.found.contains("libfabric1")));
    }
}
