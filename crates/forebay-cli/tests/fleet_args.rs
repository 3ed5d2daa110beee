//! `forebay fleet` without any server: help, bad input, keepers that are away or not
//! in this build, and that no password is ever shown.

use std::process::{Command, Output, Stdio};

fn fleet(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("fleet").args(args).env_remove("AWS_REGION").stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout) + &text(stderr))
}

#[test]
fn the_help_teaches_with_examples() {
    for (args, expected) in [
        (
            &["--help"][..],
            "forebay fleet status --dynamodb dsql-connections --backend orders --watch",
        ),
        (&["setup", "--help"], "Before the first process of a new fleet starts"),
        (&["setup", "redis", "--help"], "redis+sentinel://host:port,host:port/master"),
        (&["setup", "dynamodb", "--help"], "--endpoint-url http://127.0.0.1:8000"),
        (&["status", "--help"], "what it may keep while the keeper is away"),
        (&["reap", "--help"], "closes its connections and joins anew"),
    ] {
        let (code, text) = fleet(args);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused_with_2() {
    for (args, expected) in [
        (&["status"][..], "<--redis <URL>|--dynamodb <TABLE>>"),
        (&["status", "--redis", "redis://h", "--dynamodb", "t"], "cannot be used with"),
        (&["status", "--redis", "redis://h", "--watch=0"], "between 0.1 and 3600"),
        (&["setup", "redis", "--url", "redis://h"], "--backend <ID>"),
        (&["setup", "redis", "--url", "redis://h", "--backend", " "], "at least one character"),
        (&["reap", "--redis", "redis://h", "--backend", "b", "--member", "m"], "add --yes"),
    ] {
        let (code, text) = fleet(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[test]
fn no_password_is_shown_where_a_url_is_quoted() {
    let (code, text) = fleet(&["status", "redis://forebay:hunter2@10.0.0.5:6379/1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("redis://...@10.0.0.5:6379/1") && !text.contains("hunter2"), "{text}");
}

#[cfg(not(feature = "redis"))]
#[test]
fn a_build_without_redis_says_how_to_get_one() {
    let (code, text) = fleet(&["status", "--redis", "redis://u:hunter2@127.0.0.1:1"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("cargo build --release --features redis,dynamodb"), "{text}");
}

#[cfg(not(feature = "dynamodb"))]
#[test]
fn a_build_without_dynamodb_says_how_to_get_one() {
    for args in [&["setup", "dynamodb", "--table", "t"][..], &["status", "--dynamodb", "t"]] {
        let (code, text) = fleet(args);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("cargo build --release --features redis,dynamodb"), "{text}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_redis_that_is_away_is_named_without_its_password() {
    // port 1 is nobody's
    let (code, text) = fleet(&["status", "--redis", "redis://forebay:hunter2@127.0.0.1:1"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("the redis keeper is away: connection refused"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[cfg(feature = "redis")]
#[test]
fn a_bad_url_or_password_file_is_refused_with_2() {
    let (code, text) = fleet(&["status", "--redis", "http://forebay:hunter2@127.0.0.1:1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("scheme is not redis or rediss") && !text.contains("hunter2"), "{text}");
    let missing = ["status", "--redis", "redis://127.0.0.1:1", "--password-file", "/no/such/file"];
    let (code, text) = fleet(&missing);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--password-file /no/such/file"), "{text}");
}
