//! A deadpool manager behind a Forebay pool, against an echo server of its own.
fn main() {}
