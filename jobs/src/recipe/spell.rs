//! Near names, for "did you mean".

/// The candidates that a user who typed `wanted` may have meant, nearest first, at most three.
///
/// Near is up to a third of the letters wrong, letter case and the choice of `-` and `_` aside, or one name starting with
/// the other.
pub fn near<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let fold = |text: &str| text.to_lowercase().replace('-', "_");
    let wanted = fold(wanted);
    let mut scored: Vec<(usize, &str)> = candidates
        .into_iter()
        .filter_map(|candidate| {
            let name = fold(candidate);
            let distance = distance(&wanted, &name);
            let starts = wanted.len() >= 3 && (name.starts_with(&wanted) || wanted.starts_with(&name));
            (starts || distance <= wanted.chars().count().max(3) / 3).then_some((distance, candidate))
        })
        .collect();
    scored.sort();
    scored.dedup();
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Edits between two words: letters put in, left out, changed, or two neighbours swapped.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(200).collect(), b.chars().take(200).collect());
    let width = b.len() + 1;
    let mut rows = vec![0; (a.len() + 1) * width];
    for (j, cell) in rows[..width].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        rows[i * width] = i;
        for j in 1..=b.len() {
            let changed = rows[(i - 1) * width + j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed
                .min(rows[(i - 1) * width + j] + 1)
                .min(rows[i * width + j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[(i - 2) * width + j - 2] + 1);
            }
            rows[i * width + j] = best;
        }
    }
    rows[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, edits) in [
            ("", "", 0),
            ("ab", "ba", 1),
            ("cifar", "cifer", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
            assert_eq!(distance(b, a), edits, "{b} {a}");
        }
    }

    #[test]
    fn misspelt_names_are_found_nearest_first() {
        let names = ["cifar10", "cifar100", "mnist", "fashion_mnist", "kmnist"];
        assert_eq!(near("cifr10", names), ["cifar10", "cifar100"]);
        assert_eq!(near("CIFAR-10", names)[0], "cifar10");
        assert_eq!(near("fashion-mnist", names), ["fashion_mnist"]);
        assert_eq!(near("mnits", names)[0], "mnist");
        assert!(near("imagenet", names).is_empty());
    }
}
