//! A recording or a plan as JSON: fields under their own names, in their own order.

use crate::plan::Plan;
use crate::record::Recording;

/// The recording as one JSON document, indented, with a line feed at its end.
pub fn json(recording: &Recording) -> String {
    pretty(recording)
}

/// The plan as one JSON document, like [`json`].
pub fn plan_json(plan: &Plan) -> String {
    pretty(plan)
}

/// Any of our values as JSON.
pub(crate) fn pretty(value: &impl serde::Serialize) -> String {
    // Only maps with odd keys and failing writers make this an error; we have neither.
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}
