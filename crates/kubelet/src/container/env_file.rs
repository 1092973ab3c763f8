//! Files of variables that one container of a pod writes for another: a strict part of what a shell
//! reads. Pure.
//!
//! ```text
//!  # a comment
//!  NAME='a value, which may
//!  have several lines'    # and a comment
//! ```

/// Files are read up to here; longer ones are refused.
pub const MAX_SIZE: u64 = 64 << 10;

/// The value of `key`; nothing when the file does not have it. The error names the line.
pub fn value(text: &str, key: &str) -> Result<Option<String>, String> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: &str| format!("invalid environment variable format at line {number}: {what}");
        let (name, rest) = line.split_once('=').ok_or_else(|| wrong("missing '='"))?;
        match name.trim_end_matches([' ', '\t']) {
            "" => return Err(wrong("empty variable name")),
            bare if bare != name => return Err(wrong("whitespace before '=' is not allowed")),
            _ => {}
        }
        // As a shell has it: the name is empty, and what follows is a command, which we do not run.
        if rest.starts_with([' ', '\t']) {
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let quoted = rest.strip_prefix('\'').ok_or_else(|| wrong("value must be enclosed in single quotes"))?;
        let (mut found, mut rest, mut at) = (String::new(), quoted, number);
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                found.push_str(end);
                break after;
            }
            found.push_str(rest);
            found.push('\n');
            let unclosed =
                format!("invalid environment variable format starting at line {number}: unclosed single quote");
            (at, rest) = lines.next().ok_or(unclosed)?;
        };
        let after = after.trim_start_matches([' ', '\t']);
        if !after.is_empty() && !after.starts_with('#') {
            let what = "unexpected content after closing quote";
            return Err(format!("invalid environment variable format at line {at}: {what}"));
        }
        if name == key {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says() {
        let wrong = |line: &str| Err(format!("invalid environment variable format {line}"));
        let rows = [
            ("", Ok(None)),
            ("A='1'\nB='2'\n", Ok(Some("1"))),
            ("# A='0'\n\n \tA='1' # one\nA='2'\n", Ok(Some("1"))),
            ("B='2\nA=3\n'\nA='x\ny'\r\n", Ok(Some("x\ny"))),
            ("A='a=b \"c\" $D'\n", Ok(Some("a=b \"c\" $D"))),
            ("A=''\n", Ok(Some(""))),
            ("A= '1'\n", Ok(None)),
            ("B= x\nA='1'\n", Ok(Some("1"))),
            ("A\n", wrong("at line 1: missing '='")),
            ("\n='1'\n", wrong("at line 2: empty variable name")),
            ("A ='1'\n", wrong("at line 1: whitespace before '=' is not allowed")),
            ("A=1\n", wrong("at line 1: value must be enclosed in single quotes")),
            ("B='1\n2' x\n", wrong("at line 2: unexpected content after closing quote")),
            ("B='1\n\nA='2\n", wrong("at line 3: unexpected content after closing quote")),
            ("A='1\n", wrong("starting at line 1: unclosed single quote")),
            ("A='1'\nnonsense\n", Ok(Some("1"))),
        ];
        for (text, want) in rows {
            assert_eq!(value(text, "A"), want.map(|v| v.map(str::to_owned)), "{text:?}");
        }
    }
}
