//! The known word that is nearest to one nobody knows.

/// Nobody means one of our words with a longer one, and distance costs a product of lengths.
const LONGEST: usize = 100;

/// The nearest of the known words, if one is near enough to be meant.
///
/// Case, underscores and hyphens count only between words that are alike otherwise,
/// so that `maxOpen` finds `max_open`.
pub(crate) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    if word.len() > LONGEST {
        return None;
    }
    let plain_word = plain(word);
    let tolerated = (plain_word.len() / 3).max(1);
    let score = |other: &str| (distance(&plain_word, &plain(other)), distance_of(word, other));
    known
        .into_iter()
        .filter(|other| other.len() <= LONGEST)
        .map(|other| (score(other), other))
        .filter(|((far, _), other)| *far <= tolerated && *far < other.len())
        .min_by_key(|(score, _)| *score)
        .map(|(_, other)| other)
}

/// Whether two words differ at most in case, underscores and hyphens.
pub(crate) fn is_same_word(a: &str, b: &str) -> bool {
    (1..=LONGEST).contains(&a.len()) && b.len() <= LONGEST && plain(a) == plain(b)
}

fn plain(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

fn distance_of(a: &str, b: &str) -> usize {
    distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
}

/// Insertions, deletions, replacements and swaps of neighbours from one to the other.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j - 1] + differs).min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_across_spellings_and_slips() {
        let known = ["target_ready", "targetReady", "max_open", "name"];
        assert_eq!(nearest("tagetReady", known), Some("targetReady"));
        assert_eq!(nearest("target-ready", known), Some("target_ready"));
        assert_eq!(nearest("maxOpen", known), Some("max_open"));
        assert_eq!(nearest("nmae", known), Some("name"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn a_swap_counts_once() {
        assert_eq!(distance_of("abcd", "abdc"), 1);
        assert_eq!(distance_of("kitten", "sitting"), 3);
        assert_eq!(distance_of("", "abc"), 3);
    }
}
