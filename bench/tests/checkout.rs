//! Smoke test of the `checkout` benchmark: a quick run ends well, and its last
//! line is the JSON object that is promised.

use std::process::Command;

use serde_json::Value;

#[test]
fn quick_run_ends_with_the_ratios() {
    let output = Command::new(env!("CARGO_BIN_EXE_checkout"))
        .arg("--quick")
        .output()
        .expect("the benchmark starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    let last = said.lines().last().expect("it prints something");
    let report: Value = serde_json::from_str(last).expect("the last line is JSON");
    for ratio in ["uncontended_ratio", "contended_ratio", "worst_wait_ratio"] {
        let ratio = report[ratio].as_f64().expect("the ratio is a number");
        assert!(ratio > 0.0, "{last}");
    }
    for pool in ["forebay", "deadpool", "bb8", "mobc", "fast_pool", "sqlx"] {
        for case in ["uncontended", "contended_64", "contended_512"] {
            let time = &report["pools"][pool][case]["ns_per_op"];
            assert!(time.as_f64().is_some_and(|time| time > 0.0), "{last}");
        }
    }
}

#[test]
fn counting_mode_is_silent() {
    let output = Command::new(env!("CARGO_BIN_EXE_checkout"))
        .args(["--only", "forebay", "--case", "uncontended", "--iterations", "1000"])
        .output()
        .expect("the benchmark starts");
    assert!(output.status.success());
    assert!(output.stdout.is_empty());
}
