//! The steps of `cargo xtask test`: what each one runs, which services it wants, and how a
//! selection of them is made.

use std::env;

use crate::error::{Error, Result};
use crate::process::Cmd;
use crate::services::{ALL, Service, named_in};
use crate::workspace::{Workspace, package_name};

/// What a step has to do with services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Services {
    /// It runs without any.
    Unused,
    /// It uses those that are there; its tests skip what is missing.
    Used,
    /// It cannot run without those behind these variables.
    Required(Vec<&'static str>),
}

impl Services {
    /// What a program with this source text needs: those whose addresses it looks for.
    fn of(source: &str) -> Self {
        let variables: Vec<&str> = named_in(source).iter().map(|one| one.variable()).collect();
        if variables.is_empty() { Self::Unused } else { Self::Required(variables) }
    }
}

/// One step.
#[derive(Debug)]
pub(crate) struct Step {
    /// What `--only` and the summary call it.
    pub(crate) name: String,
    /// A word for `--only` that selects this step and its siblings.
    pub(crate) group: &'static str,
    /// What it checks.
    pub(crate) about: String,
    /// What it needs.
    pub(crate) services: Services,
    /// Whether words behind `--` reach its test binaries.
    pub(crate) takes_filter: bool,
    /// What it runs; `None` for the step that brings up the services.
    pub(crate) command: Option<Cmd>,
}

/// The name of the step that brings up the services.
pub(crate) const SERVICES: &str = "services";

/// Every step, in the order they run; `filter` goes to the test binaries.
pub(crate) fn all(workspace: &Workspace, filter: &[String]) -> Result<Vec<Step>> {
    let root = &workspace.root;
    let filtered = |cmd: Cmd| {
        if filter.is_empty() { cmd } else { cmd.args(["--"]).args(filter) }
    };
    let mut steps = vec![
        Step {
            name: SERVICES.to_owned(),
            group: SERVICES,
            about: "the servers the tests talk to".to_owned(),
            services: Services::Used,
            takes_filter: false,
            command: None,
        },
        Step {
            name: "test".to_owned(),
            group: "test",
            about: "unit, integration and documentation tests".to_owned(),
            services: Services::Used,
            takes_filter: true,
            command: Some(filtered(Cmd::cargo("test --workspace --all-features", root))),
        },
        Step {
            name: "model".to_owned(),
            group: "model",
            about: "model checks: tests over many thread interleavings".to_owned(),
            services: Services::Unused,
            takes_filter: true,
            command: Some(filtered(
                Cmd::cargo("test -p forebay --release --test model", root)
                    .env("RUSTFLAGS", flags("RUSTFLAGS", "--cfg shuttle"))
                    // Other flags would rebuild every dependency in the usual folder.
                    .env(
                        "CARGO_TARGET_DIR",
                        workspace.relative(&workspace.target_dir().join("shuttle")),
                    ),
            )),
        },
    ];
    for example in workspace.examples()? {
        let package = package_name(&root.join(&example.package_dir))?;
        let line = format!("run -p {package} --all-features --example {}", example.name);
        steps.push(Step {
            name: format!("example-{}", example.name),
            group: "examples",
            about: example.about,
            services: Services::of(&example.source),
            takes_filter: false,
            command: Some(Cmd::cargo(&line, root)),
        });
    }
    for bench in workspace.benches()? {
        let package = package_name(&root.join(&bench.package_dir))?;
        let line = format!("run --release -p {package} --bin {} -- --quick", bench.name);
        steps.push(Step {
            name: format!("bench-{}", bench.name),
            group: "benches",
            about: bench.about,
            services: Services::of(&bench.source),
            takes_filter: false,
            command: Some(Cmd::cargo(&line, root)),
        });
    }
    steps.push(Step {
        name: "doc".to_owned(),
        group: "doc",
        about: "the API documentation builds without warnings".to_owned(),
        services: Services::Unused,
        takes_filter: false,
        command: Some(
            Cmd::cargo("doc --workspace --no-deps --all-features", root)
                .env("RUSTDOCFLAGS", flags("RUSTDOCFLAGS", "-D warnings")),
        ),
    });
    Ok(steps)
}

/// The steps to run: those named by `only` (all without any), narrowed to the ones that take a
/// filter when there is one, and preceded by the services when one of them wants those.
pub(crate) fn select(steps: Vec<Step>, only: &[String], filtered: bool) -> Result<Vec<Step>> {
    let named = |step: &Step, word: &str| step.name == word || step.group == word;
    for word in only {
        if !steps.iter().any(|step| named(step, word)) {
            let mut words: Vec<&str> = Vec::new();
            for step in &steps {
                for word in [step.group, step.name.as_str()] {
                    if !words.contains(&word) {
                        words.push(word);
                    }
                }
            }
            return Err(Error::usage(format!(
                "no step `{word}`; --only takes one of {}",
                words.join(", ")
            )));
        }
    }
    let wanted = |step: &Step| {
        (only.is_empty() || only.iter().any(|word| named(step, word)))
            && (!filtered || step.takes_filter)
    };
    let services_wanted =
        steps.iter().any(|step| wanted(step) && step.services != Services::Unused);
    let selected: Vec<Step> = steps
        .into_iter()
        .filter(|step| wanted(step) || (services_wanted && step.name == SERVICES))
        .collect();
    if selected.is_empty() {
        return Err(Error::usage(
            "none of the steps named by --only takes a filter; `test` and `model` do",
        ));
    }
    Ok(selected)
}

/// The services that `steps` want: all of them, unless no step uses whatever is there.
pub(crate) fn wanted(steps: &[Step]) -> Vec<&'static dyn Service> {
    let others = || steps.iter().filter(|step| step.name != SERVICES);
    let everything =
        others().next().is_none() || others().any(|step| step.services == Services::Used);
    ALL.into_iter()
        .filter(|service| {
            everything
                || others().any(|step| match &step.services {
                    Services::Required(variables) => variables.contains(&service.variable()),
                    Services::Used | Services::Unused => false,
                })
        })
        .collect()
}

/// `more` added to what the caller has in `variable`.
fn flags(variable: &str, more: &str) -> String {
    match env::var(variable) {
        Ok(given) if !given.trim().is_empty() => format!("{given} {more}"),
        _ => more.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{SERVICES, Services, Step, select, wanted};

    fn steps() -> Vec<Step> {
        let step = |name: &str, group, services, takes_filter| Step {
            name: name.to_owned(),
            group,
            about: String::new(),
            services,
            takes_filter,
            command: None,
        };
        vec![
            step(SERVICES, SERVICES, Services::Used, false),
            step("test", "test", Services::Used, true),
            step("model", "model", Services::Unused, true),
            step("example-a", "examples", Services::Unused, false),
            step("example-b", "examples", Services::Required(vec!["FOREBAY_TEST_REDIS"]), false),
        ]
    }

    fn names(only: &[&str], filtered: bool) -> Vec<String> {
        let only: Vec<String> = only.iter().map(|word| (*word).to_owned()).collect();
        let selected = select(steps(), &only, filtered).unwrap();
        selected.into_iter().map(|step| step.name).collect()
    }

    #[test]
    fn everything_runs_unless_told_otherwise() {
        assert_eq!(names(&[], false).len(), steps().len());
    }

    #[test]
    fn services_come_up_only_for_steps_that_want_them() {
        assert_eq!(names(&["model"], false), ["model"]);
        assert_eq!(names(&["example-a"], false), ["example-a"]);
        assert_eq!(names(&["examples"], false), [SERVICES, "example-a", "example-b"]);
        assert_eq!(names(&["test"], false), [SERVICES, "test"]);
        assert_eq!(names(&[SERVICES], false), [SERVICES]);
    }

    #[test]
    fn only_the_services_that_are_wanted_come_up() {
        let wanted = |only: &str| {
            let selected = select(steps(), &[only.to_owned()], false).unwrap();
            wanted(&selected).iter().map(|service| service.word()).collect::<Vec<_>>()
        };
        assert_eq!(wanted("examples"), ["redis"]);
        assert_eq!(wanted("test"), ["postgres", "redis", "dynamodb"]);
        assert_eq!(wanted(SERVICES), ["postgres", "redis", "dynamodb"]);
    }

    #[test]
    fn a_program_needs_the_services_it_looks_for() {
        assert_eq!(Services::of("fn main() {}"), Services::Unused);
        let looks = r#"let (a, b) = (var("FOREBAY_TEST_REDIS"), var("FOREBAY_TEST_DYNAMODB"));"#;
        let both = vec!["FOREBAY_TEST_REDIS", "FOREBAY_TEST_DYNAMODB"];
        assert_eq!(Services::of(looks), Services::Required(both));
    }

    #[test]
    fn a_filter_leaves_the_steps_that_take_it() {
        assert_eq!(names(&[], true), [SERVICES, "test", "model"]);
        assert_eq!(names(&["model"], true), ["model"]);
        let only = ["examples".to_owned()];
        assert!(select(steps(), &only, true).unwrap_err().is_usage());
    }

    #[test]
    fn an_unknown_step_is_answered_with_the_known_ones() {
        let error = select(steps(), &["exmples".to_owned()], false).unwrap_err();
        assert!(error.is_usage());
        assert!(error.to_string().contains("examples, example-a"), "{error}");
    }
}
