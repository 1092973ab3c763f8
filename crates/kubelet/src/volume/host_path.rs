//! Paths of the node that must be what a volume says they are.

use std::fs::FileType;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Checks a path, or makes it where its type says so. The error is upstream's message.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let found = std::fs::metadata(path).ok();
    let is = |test: fn(&FileType) -> bool| found.as_ref().is_some_and(|m| test(&m.file_type()));
    let (fits, what) = match kind {
        "" => return Ok(()),
        "DirectoryOrCreate" if found.is_none() => {
            let made = std::fs::create_dir_all(path)
                .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)));
            return made.map_err(|e| e.to_string());
        }
        "FileOrCreate" if found.is_none() => {
            let made = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
            let made = made.and_then(|f| f.set_permissions(std::fs::Permissions::from_mode(0o644)));
            return made.map_err(|e| format!("open {}: {}", path.display(), describe(&e)));
        }
        "Directory" | "DirectoryOrCreate" => (is(FileType::is_dir), "a directory"),
        "File" | "FileOrCreate" => (is(FileType::is_file), "a file"),
        "Socket" => (is(FileType::is_socket), "a socket file"),
        "CharDevice" => (is(FileType::is_char_device), "a character device"),
        "BlockDevice" => (is(FileType::is_block_device), "a block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    if fits { Ok(()) } else { Err(format!("hostPath type check failed: {} is not {what}", path.display())) }
}

/// Go's words for the usual errors.
fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".into(),
        std::io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_they_should_be() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir(at("dir")).expect("made");
        std::fs::write(at("file"), "").expect("written");
        let _socket = std::os::unix::net::UnixListener::bind(at("sock")).expect("bound");
        let no =
            |name: &str, what: &str| Err(format!("hostPath type check failed: {} is not {what}", at(name).display()));
        let rows = [
            ("none", "", Ok(())),
            ("none", "Directory", no("none", "a directory")),
            ("file", "Directory", no("file", "a directory")),
            ("dir", "Directory", Ok(())),
            ("new/deep", "DirectoryOrCreate", Ok(())),
            ("new/deep", "Directory", Ok(())),
            ("file", "DirectoryOrCreate", no("file", "a directory")),
            ("none", "File", no("none", "a file")),
            ("dir", "File", no("dir", "a file")),
            ("file", "File", Ok(())),
            ("made", "FileOrCreate", Ok(())),
            ("made", "File", Ok(())),
            ("dir", "FileOrCreate", no("dir", "a file")),
            ("no/such", "FileOrCreate", Err(format!("open {}: no such file or directory", at("no/such").display()))),
            ("sock", "Socket", Ok(())),
            ("sock", "File", no("sock", "a file")),
            ("file", "Socket", no("file", "a socket file")),
            ("file", "CharDevice", no("file", "a character device")),
            ("file", "BlockDevice", no("file", "a block device")),
            ("file", "Tape", Err("Tape is an invalid volume type".into())),
        ];
        for (name, kind, want) in rows {
            assert_eq!(check(&at(name), kind), want, "{name} {kind}");
        }
        assert_eq!(check(Path::new("/dev/null"), "CharDevice"), Ok(()));
    }
}
