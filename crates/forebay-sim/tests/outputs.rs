//! What a run is shown as: CSV, JSON, the summary, the page and the comparison.
//! All from recordings made by hand, so that these tests say nothing about the
//! run itself.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod synthetic;

use forebay_sim::output::{Style, compare, csv, json, report, summary};
use forebay_sim::{Recording, Totals};
use quick_xml::events::Event;
use synthetic::{crowd, hostile, recording, verdict};

const PLAIN: Style = Style { colour: false, utf8: true };

/// Rows and fields of a CSV, by RFC 4180.
fn parsed(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(row.is_empty() && field.is_empty() && !quoted, "the last row is whole");
    rows
}

/// Reads a page as XML; gives its element names and all its text.
fn read(page: &str) -> (Vec<String>, String) {
    let mut reader = quick_xml::Reader::from_str(page);
    reader.config_mut().check_end_names = true;
    let (mut names, mut text, mut depth) = (Vec::new(), String::new(), 0);
    loop {
        match reader.read_event().unwrap_or_else(|error| {
            panic!("not well-formed at {}: {error}", reader.error_position())
        }) {
            Event::Start(start) => {
                depth += 1;
                assert!(start.attributes().all(|one| one.is_ok()), "{start:?}");
                names.push(String::from_utf8_lossy(start.name().as_ref()).into_owned());
            }
            Event::Empty(start) => {
                assert!(start.attributes().all(|one| one.is_ok()), "{start:?}");
                names.push(String::from_utf8_lossy(start.name().as_ref()).into_owned());
            }
            Event::End(_) => depth -= 1,
            Event::Text(part) => text.push_str(&part.decode().expect("utf-8")),
            Event::GeneralRef(part) => {
                text.push_str(&format!("&{};", part.decode().expect("utf-8")));
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "every element is closed");
    (names, text)
}

#[test]
fn the_csv_has_a_row_for_each_service_and_one_for_all_at_each_instant() {
    let run = recording();
    let rows = parsed(&csv(&run));
    let (head, rows) = rows.split_first().expect("a header");
    assert_eq!(head[..5], ["t", "service", "target", "ready", "in_use"]);
    assert_eq!(rows.len(), run.samples.len() * (run.services.len() + 1));
    assert!(rows.iter().all(|row| row.len() == head.len()));
    let column = |name: &str| head.iter().position(|one| one == name).expect("a column");
    let number =
        |row: &Vec<String>, name: &str| row[column(name)].parse::<u64>().expect("a number");
    for instant in rows.chunks(run.services.len() + 1) {
        let (all, each) = instant.split_last().expect("rows");
        assert_eq!(all[1], "*");
        for name in ["target", "ready", "in_use", "opened", "served"] {
            let sum: u64 = each.iter().map(|row| number(row, name)).sum();
            assert_eq!(number(all, name), sum, "{name} at {}", all[0]);
        }
        assert!(each.iter().all(|row| row[column("connects")].is_empty()));
    }
}

#[test]
fn no_connect_is_lost_or_told_twice_in_the_csv_however_often_samples_are_taken() {
    let connects = |run: &Recording| -> u64 {
        let rows = parsed(&csv(run));
        let column = rows[0].iter().position(|one| one == "connects").expect("a column");
        let all = rows[1..].iter().filter(|row| row[1] == "*");
        all.map(|row| row[column].parse::<u64>().expect("a number")).sum()
    };
    let mut run = recording();
    let seen: u64 = run.seconds_seen.iter().map(|second| u64::from(second.connects)).sum();
    assert_eq!(connects(&run), seen);
    // every 7 s: several seconds for a row, and a rest after the last
    let every_7 = run.samples.iter().step_by(7).cloned().collect();
    run.samples = every_7;
    assert_eq!(connects(&run), seen);
    // every tenth of a second: most rows have no second that ended
    for (index, sample) in run.samples.iter_mut().enumerate() {
        sample.at = index as f64 / 10.0;
    }
    assert_eq!(connects(&run), seen);
}

#[test]
fn names_stay_whole_in_the_csv() {
    let run = hostile();
    let rows = parsed(&csv(&run));
    for (row, name) in rows[1..].iter().zip(&run.services) {
        assert_eq!(&row[1], name);
    }
}

#[test]
fn the_json_holds_the_whole_recording() {
    let run = recording();
    let value: serde_json::Value = serde_json::from_str(&json(&run)).expect("JSON");
    assert_eq!(value["scenario"], "mass-drop");
    assert_eq!(value["samples"].as_array().expect("samples").len(), run.samples.len());
    assert_eq!(value["seconds_seen"][1]["connects"], run.seconds_seen[1].connects);
    assert_eq!(value["events"][0]["recovered_at"], 302.4);
}

#[test]
fn the_same_recording_gives_the_same_bytes() {
    let (one, other) = (recording(), recording());
    assert_eq!(csv(&one), csv(&other));
    assert_eq!(json(&one), json(&other));
    assert_eq!(report(&one), report(&other));
    assert_eq!(summary(&one, PLAIN), summary(&other, PLAIN));
    assert_eq!(compare(&one, &crowd()).report(), compare(&other, &crowd()).report());
}

#[test]
fn the_summary_names_a_failed_assertion_with_its_first_instant() {
    let mut run = recording();
    run.verdicts.push(verdict("recover_within", false, "within 1 s", "2.4 s", Some(301.25)));
    let text = summary(&run, PLAIN);
    let line = text.lines().find(|line| line.contains("recover_within")).expect("its line");
    assert!(line.contains('✗') && line.ends_with("first at 5 min 1.25 s"), "{line}");
    assert!(text.contains("✓ zero_empty"), "{text}");
    assert!(text.ends_with("\n1 of 5 assertions failed\n"), "{text}");
    assert!(text.lines().all(|line| line.trim_end() == line), "spaces at an end: {text}");
}

#[test]
fn what_was_meant_to_fail_is_told_apart() {
    let mut run = recording();
    let mut meant = verdict("zero_empty", false, "none", "12", Some(5.0));
    meant.expected_to_fail = true;
    run.verdicts.push(meant.clone());
    assert!(run.as_expected());
    let text = summary(&run, PLAIN);
    assert!(text.contains("first at 5 s; failed, as it was meant to"), "{text}");
    assert!(text.contains("as expected: 1 of 5 assertions failed"), "{text}");
    meant.held = true;
    run.verdicts.push(meant);
    assert!(!run.as_expected());
    assert!(summary(&run, PLAIN).contains("held, but was meant to fail"));
    assert!(report(&run).contains("held, but was meant to fail"));
}

#[test]
fn a_terminal_gets_only_what_it_can_show() {
    let run = hostile();
    let text = summary(&run, Style { colour: false, utf8: false });
    assert!(
        text.is_ascii() && text.contains("FAILED <i>") && text.contains("ok     zero_empty"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text:?}");
    let text = summary(&run, Style { colour: true, utf8: true });
    assert!(text.contains("\x1b[1;31m✗\x1b[0m") && !text.contains("\x1b[2J"), "{text:?}");
    let text = compare(&run, &run).text(Style { colour: true, utf8: true });
    assert!(!text.contains("\x1b[2J"), "{text:?}");
}

#[test]
fn of_many_services_the_summary_lists_the_lowest() {
    let mut run = crowd();
    let last = run.samples.last_mut().expect("a sample");
    (last.services[30].ready, last.services[30].in_use) = (1, 0);
    let text = summary(&run, PLAIN);
    let first = text.lines().skip_while(|line| !line.starts_with("the 8 of 44")).nth(1);
    assert!(first.expect("a row").trim_start().starts_with("service-31"), "{text}");
    assert!(text.lines().count() < 60, "{text}");
}

#[test]
fn the_page_is_well_formed_and_loads_nothing() {
    for run in [recording(), crowd(), hostile()] {
        let page = report(&run);
        let (names, _) = read(&page);
        let n = |name: &str| names.iter().filter(|one| *one == name).count();
        assert!(n("figure") >= 5 && n("table") >= 2, "{names:?}");
        for loads in ["link", "img", "iframe", "object", "use", "image"] {
            assert_eq!(n(loads), 0, "{loads}");
        }
        for loads in ["http://", "https://", "url(", "@import", " src=", "fetch("] {
            assert!(!page.contains(loads), "{loads}");
        }
        assert!(page.contains("name=\"viewport\"") && page.contains("prefers-color-scheme:dark"));
    }
}

#[test]
fn every_plot_is_told_in_words_too() {
    let page = report(&recording());
    let plots = page.matches("<svg class=\"outer\" role=\"img\"").count();
    assert!(plots >= 10, "{plots}");
    let told = page.split("<svg class=\"outer\"").skip(1);
    for plot in told {
        let desc = plot.split("<desc>").nth(1).and_then(|rest| rest.split("</desc>").next());
        assert!(
            desc.is_some_and(|desc| desc.contains("at most") && desc.ends_with('.')),
            "{desc:?}"
        );
    }
}

#[test]
fn names_cannot_break_out_of_the_page() {
    let page = report(&hostile());
    let (names, text) = read(&page);
    assert!(names.iter().filter(|name| *name == "script").count() == 1, "one script: ours");
    for name in ["b onload", "<i>", "<u>", "<svg/onload"] {
        assert!(!page.contains(&format!("<{}", name.trim_start_matches('<'))), "{name}");
    }
    assert!(text.contains("script&gt;") || page.contains("&lt;script&gt;"), "the name is there");
    read(&compare(&hostile(), &recording()).report());
}

#[test]
fn events_are_bands_with_numbers_and_recovery() {
    let page = report(&recording());
    assert!(page.contains("<rect class=\"event\" x=\"600\"") && page.contains("width=\"60\""));
    assert!(page.contains("<rect class=\"healing\" x=\"660\""));
    assert!(page.contains("half of the connections dropped at 5 min, recovered 2.4 s later"));
    assert!(page.contains("recovered in 1.5 s"));
    let mut run = recording();
    run.events[0].recovered_at = None;
    assert!(report(&run).contains("did not recover"));
}

#[test]
fn the_page_stays_small_and_keeps_extremes_of_long_runs() {
    let mut run = recording();
    let sample = run.samples[500].clone();
    run.samples = (0..50_000_u32)
        .map(|n| {
            let mut sample = sample.clone();
            sample.at = f64::from(n) / 10.0;
            sample.services[0].ready = if n == 12_345 { 777 } else { n % 5 };
            sample
        })
        .collect();
    run.seconds = 5_000.0;
    let page = report(&run);
    assert!(page.len() < 600_000, "{}", page.len());
    // the values are in the curves as they are, upwards being negative
    assert!(page.contains("1234.5 -777 "), "the peak of one service is there");
    for curve in page.split("class=\"curve ").skip(1) {
        let Some(path) = curve.split(" d=\"M").nth(1).and_then(|d| d.split('"').next()) else {
            continue;
        };
        assert!(path.split(' ').count() <= 2 * (2 * 600 + 6), "{}", path.len());
    }
}

#[test]
fn an_empty_recording_still_gives_every_output() {
    let run = Recording {
        scenario: String::new(),
        seed: 0,
        seconds: 0.0,
        members: 0,
        services: Vec::new(),
        samples: Vec::new(),
        seconds_seen: Vec::new(),
        events: Vec::new(),
        verdicts: Vec::new(),
        totals: Totals { own_time: f64::NAN, ..Totals::default() },
        open_limit: 0,
        rate_limit: 0,
    };
    read(&report(&run));
    assert_eq!(parsed(&csv(&run)).len(), 1);
    assert!(summary(&run, PLAIN).contains("nothing was asserted"));
    read(&compare(&run, &recording()).report());
    read(&compare(&recording(), &run).report());
}

#[test]
fn a_comparison_tells_what_differs_and_which_is_better() {
    let a = recording();
    let mut b = recording();
    b.scenario = "mass-drop-slow".to_owned();
    b.totals.converged_at = Some(21.2);
    b.totals.served += 1000;
    b.totals.wait[1] = 0.0017;
    b.verdicts[1] = verdict("converge_within", false, "within 10 s", "21.2 s", Some(10.0));
    let both = compare(&a, &b);
    assert!(!both.as_expected());
    let text = both.text(PLAIN);
    let line = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).expect("a row");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("converged after"), "converged after 2.12 s 21.2 s +19.08 s (+900 %)");
    assert!(line("wait, 99th").ends_with("−1.7 ms (−50 %)"), "{text}");
    assert!(line("connections opened").ends_with("same"), "{text}");
    assert!(text.contains("B ✗ 21.2 s"), "{text}");

    let value: serde_json::Value = serde_json::from_str(&both.json()).expect("JSON");
    let figures = value["figures"].as_array().expect("figures");
    let figure = |name: &str| figures.iter().find(|one| one["name"] == name).expect("a figure");
    assert_eq!(
        (&figure("converged_after")["a"], &figure("converged_after")["better"]),
        (&2.12.into(), &"a".into())
    );
    assert_eq!(figure("served")["better"], "b");
    assert_eq!(figure("opened")["better"], serde_json::Value::Null);
    assert_eq!(value["b"]["as_expected"], false);

    let page = both.report();
    let (names, _) = read(&page);
    assert_eq!(names.iter().filter(|name| *name == "figure").count(), 5);
    assert!(page.contains(&both.section()));
    assert!(page.contains("<td class=\"diff bad\">+19.08 s (+900\u{a0}%)</td>"));
}

#[test]
fn never_to_converge_is_worse_than_late() {
    let a = recording();
    let mut b = recording();
    b.totals.converged_at = None;
    let better = |both: &forebay_sim::output::Comparison<'_>| {
        let value: serde_json::Value = serde_json::from_str(&both.json()).expect("JSON");
        value["figures"][0]["better"].clone()
    };
    assert_eq!(better(&compare(&a, &b)), "a");
    assert_eq!(better(&compare(&b, &a)), "b");
    assert!(compare(&a, &b).text(PLAIN).contains("never"));
}
