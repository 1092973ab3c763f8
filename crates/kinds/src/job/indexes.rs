//! Lists of indexes as text: `1,3-5` stands for 1, 3, 4 and 5.

/// One interval, both ends included; every index is below `completions`.
fn interval(text: &str, completions: i32) -> Result<(i32, i32), String> {
    let number = |text: &str| {
        let wrong = || format!("cannot convert string to integer for index: {text:?}");
        let number: i64 = text.parse().map_err(|_| wrong())?;
        if number >= i64::from(completions) {
            return Err(format!("too large index: {text:?}"));
        }
        i32::try_from(number).map_err(|_| wrong())
    };
    let parts: Vec<&str> = text.split('-').collect();
    match parts[..] {
        [one] => number(one).map(|n| (n, n)),
        [first, last] => {
            let (first, last) = (number(first)?, number(last)?);
            if first >= last {
                return Err(format!("non-increasing order, previous: {first}, current: {last}"));
            }
            Ok((first, last))
        }
        _ => Err(format!(
            "the fragment {text:?} violates the requirement that an index interval can have at most two parts \
             separated by '-'"
        )),
    }
}

/// How many indexes the list has, or what is wrong with it.
pub fn count(list: &str, completions: i32) -> Result<i32, String> {
    let mut total: i32 = 0;
    let mut before: Option<i32> = None;
    for text in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = interval(text, completions)?;
        if let Some(before) = before.filter(|before| *before >= first) {
            return Err(format!("non-increasing order, previous: {before}, current: {first}"));
        }
        total = total.saturating_add(last - first + 1);
        before = Some(last);
    }
    Ok(total)
}

/// The first index that is in both ordered lists; intervals that cannot be read do not count.
pub fn overlap(completed: &str, failed: &str, completions: i32) -> Option<i32> {
    let read = |list: &str| -> Vec<(i32, i32)> {
        list.split(',').filter_map(|text| interval(text, completions).ok()).collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut i, mut j) = (0, 0);
    while let (Some(a), Some(b)) = (completed.get(i), failed.get(j)) {
        if a.0 <= b.1 && b.0 <= a.1 {
            return Some(a.0.max(b.0));
        }
        if a.0 <= b.0 { i += 1 } else { j += 1 }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_counted_or_told_wrong() {
        for (list, want) in [
            ("", Ok(0)),
            ("1,3-5", Ok(4)),
            ("0-9", Ok(10)),
            ("1-2-3", Err("at most two parts")),
            ("x", Err("cannot convert string to integer for index: \"x\"")),
            ("10", Err("too large index: \"10\"")),
            ("5-3", Err("non-increasing order, previous: 5, current: 3")),
            ("3,3", Err("non-increasing order, previous: 3, current: 3")),
            ("99999999999999999999", Err("cannot convert")),
        ] {
            match (count(list, 10), want) {
                (Ok(n), Ok(want)) => assert_eq!(n, want, "{list}"),
                (Err(text), Err(want)) => assert!(text.contains(want), "{list}: {text}"),
                (got, want) => panic!("{list}: {got:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn the_first_common_index_is_named() {
        for (a, b, want) in
            [("1-3,7", "4-6", None), ("1-3,7", "2", Some(2)), ("1,5", "3-5", Some(5)), ("x,4", "4", Some(4))]
        {
            assert_eq!(overlap(a, b, 10), want, "{a} {b}");
        }
    }
}
