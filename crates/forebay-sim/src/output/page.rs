//! The frame of a page: one file, nothing loaded from anywhere, well-formed as XML
//! too.

use super::words::escaped;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Forbids the page to load anything, should a name ever get through as markup.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A whole page.
pub(crate) fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "<!DOCTYPE html>\n\
         <html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\
         <footer>Made by forebay sim {version}. The same scenario and seed give the same \
         page, byte for byte.</footer>\n</main>\n\
         <script>\n//<![CDATA[\n{SCRIPT}//]]>\n</script>\n</body>\n</html>\n"
    )
}
