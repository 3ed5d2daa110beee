//! `forebay fleet reap`: takes back the leases of a member that is dead, after
//! saying what that means if it is not.

use std::io::{IsTerminal, Write, stdin, stdout};
use std::time::Duration;

use forebay_fleet::MemberInfo;

use super::args::Reap;
use super::render::printable;
use super::{Error, Outcome, place};
use crate::dev::paint::span;

pub(super) async fn run(args: &Reap) -> Result<Outcome, Error> {
    if !args.yes && !stdin().is_terminal() {
        return Err(Error::Arguments("there is nobody to ask here; add --yes".to_owned()));
    }
    let keeper = place::keeper(&args.place).await?;
    let books = keeper.inspect(&args.backend).await?;
    let member = match find(&books.members, &args.member) {
        Ok(member) => member,
        Err(problem) => {
            eprintln!("forebay: backend {} has {problem}", printable(&args.backend));
            return Ok(Outcome::Refused);
        }
    };
    if let Some(reason) = alive(member)
        && !args.force
    {
        eprintln!("forebay: {} {reason}; --force reaps it all the same", shown(member));
        return Ok(Outcome::Refused);
    }
    writeln!(stdout(), "{}", meaning(member))?;
    if !args.yes && !asked()? {
        writeln!(stdout(), "left alone")?;
        return Ok(Outcome::Refused);
    }
    match keeper.reap(&args.backend, &member.member).await? {
        Some(leases) => {
            writeln!(stdout(), "reaped {}: {} went back", shown(member), counted(leases))?;
            Ok(Outcome::Done)
        }
        None => {
            eprintln!("forebay: {} is gone already", shown(member));
            Ok(Outcome::Refused)
        }
    }
}

/// The member of this name, or the only one whose instance it is.
fn find<'a>(members: &'a [MemberInfo], name: &str) -> Result<&'a MemberInfo, String> {
    if let Some(exact) = members.iter().find(|info| info.member.as_str() == name) {
        return Ok(exact);
    }
    let of_instance: Vec<&MemberInfo> =
        members.iter().filter(|info| info.member.instance() == name).collect();
    match of_instance.as_slice() {
        [only] => Ok(only),
        [] if members.is_empty() => Err("no members".to_owned()),
        [] => Err(format!(
            "no member `{}`; its members are {}",
            printable(name),
            list(&members.iter().collect::<Vec<_>>())
        )),
        several => Err(format!(
            "several members of the instance `{}`: name one of {}",
            printable(name),
            list(several)
        )),
    }
}

/// Most members named in a message.
const NAMED_MAX: usize = 10;

fn list(members: &[&MemberInfo]) -> String {
    let mut names: Vec<String> = members.iter().take(NAMED_MAX).map(|info| shown(info)).collect();
    if members.len() > NAMED_MAX {
        names.push(format!("{} more", members.len() - NAMED_MAX));
    }
    names.join(", ")
}

/// Why a member should not be reaped: it was heard, or may have been.
fn alive(info: &MemberInfo) -> Option<String> {
    let ttl = Duration::from_millis(info.profile.ttl_ms);
    match info.silent_ms.map(Duration::from_millis) {
        None => Some("cannot be told to be silent by this keeper".to_owned()),
        Some(silent) if silent < ttl => {
            Some(format!("was heard {} ago, within its ttl of {}", span(silent), span(ttl)))
        }
        Some(_) => None,
    }
}

fn meaning(info: &MemberInfo) -> String {
    let heartbeat = span(Duration::from_millis(info.profile.heartbeat_ms));
    let leases = counted(info.held);
    let silent = match info.silent_ms {
        Some(ms) => format!("silent for {}", span(Duration::from_millis(ms))),
        None => "not heard".to_owned(),
    };
    format!(
        "{member} ({service}) is {silent} and has {leases}, which others get at once. If its process \
         still runs, the backend may have up to {held} connections over the limit until it reports \
         (every {heartbeat}); it then closes them and joins anew.",
        member = shown(info),
        service = printable(&info.profile.service),
        held = info.held,
    )
}

fn shown(info: &MemberInfo) -> String {
    printable(info.member.as_str())
}

fn counted(leases: u32) -> String {
    if leases == 1 { "1 lease".to_owned() } else { format!("{leases} leases") }
}

fn asked() -> Result<bool, Error> {
    let mut out = stdout().lock();
    write!(out, "reap it? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
