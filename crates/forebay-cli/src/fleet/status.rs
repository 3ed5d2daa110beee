//! `forebay fleet status`: the books of one or all backends, once or again and again.

use std::io::{IsTerminal, Write, stdout};

use forebay_fleet::{BackendInfo, Keeper, KeeperError};

use super::args::Status;
use super::{Error, Outcome, place, render};
use crate::dev::paint::Paint;

/// Clears the screen and begins at its top.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(super) async fn run(args: &Status) -> Result<Outcome, Error> {
    let keeper = place::keeper(&args.place).await?;
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let terminal = stdout().is_terminal() && !args.json;
    let paint = Paint(terminal && !args.no_color && !set("NO_COLOR"));
    let Some(every) = args.watch else {
        let books = look(keeper.as_ref(), args.backend.as_deref()).await?;
        show(&text(args, &books, paint))?;
        let missing = args.backend.is_some() && books.iter().all(|info| info.generation.is_empty());
        return Ok(if missing { Outcome::Refused } else { Outcome::Done });
    };
    loop {
        let text = match look(keeper.as_ref(), args.backend.as_deref()).await {
            Ok(books) => text(args, &books, paint),
            Err(error @ KeeperError::Unusable { .. }) => return Err(error.into()),
            // an outage is worth watching, too
            Err(error) if args.json => {
                format!("{}\n", serde_json::json!({ "error": error.to_string() }))
            }
            Err(error) => format!("{}\n", paint.red(&error.to_string())),
        };
        let begin = if terminal { CLEAR } else { "" };
        let end = if terminal || args.json { "" } else { "\n" };
        show(&format!("{begin}{text}{end}"))?;
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(Outcome::Done),
            () = tokio::time::sleep(every) => {}
        }
    }
}

async fn look(keeper: &dyn Keeper, backend: Option<&str>) -> Result<Vec<BackendInfo>, KeeperError> {
    let backends = match backend {
        Some(backend) => vec![backend.to_owned()],
        None => keeper.backends().await?,
    };
    let mut books = Vec::with_capacity(backends.len());
    for backend in backends {
        books.push(keeper.inspect(&backend).await?);
    }
    Ok(books)
}

fn text(args: &Status, books: &[BackendInfo], paint: Paint) -> String {
    if args.json {
        return format!("{}\n", serde_json::json!({ "backends": books }));
    }
    if books.is_empty() {
        return "no backend has books here; members make them, or `forebay fleet setup`\n".into();
    }
    books.iter().map(|info| render::backend(info, paint)).collect::<Vec<_>>().join("\n")
}

fn show(text: &str) -> Result<(), Error> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
