//! `GET /logs/…`: the folder of the node's own logs. Every path is resolved beneath it by the kernel, from an
//! open descriptor; links within it are followed, none leads out.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use rustix::fs::{FileType, Mode, OFlags};
use transport::Response;

use super::text;
use crate::context::blocking;
use crate::volume::beneath::Dir;

/// So much is read at a time.
const PIECE: usize = 64 << 10;
/// Names that are listed of one folder.
const MAX_NAMES: usize = 10_000;

enum Found {
    Folder(Vec<(String, bool)>),
    /// Up to this length: what is written meanwhile is not followed.
    File(File, u64),
}

/// Answers with a listing or a file.
pub async fn answer(root: &Path, path: &str) -> Response {
    let (root, wanted) = (root.to_owned(), path.trim_matches('/').to_owned());
    let found = match blocking(move || find(&root, &wanted)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            return text(StatusCode::FORBIDDEN, "403 Forbidden\n");
        }
        // What leads out is as if it were not there.
        Ok(Err(_)) => return text(StatusCode::NOT_FOUND, "404 page not found\n"),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    match found {
        Found::Folder(names) => {
            let mut response = text(StatusCode::OK, listing(&names));
            let html = HeaderValue::from_static("text/html; charset=utf-8");
            response.headers_mut().insert(http::header::CONTENT_TYPE, html);
            response
        }
        Found::File(file, length) => {
            let mut response = send(file, length);
            let headers = response.headers_mut();
            // Whatever is in it is shown, not run.
            headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
            response
        }
    }
}

fn find(root: &Path, path: &str) -> io::Result<Found> {
    let root = Dir::open_followed(root)?;
    let found = if path.is_empty() { root.resolve(Path::new("."))? } else { root.resolve(Path::new(path))? };
    let stat = rustix::fs::fstat(&found)?;
    let again = format!("/proc/self/fd/{}", found.as_raw_fd());
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let dir = Dir::open_followed(Path::new(&again))?;
            let mut names = Vec::new();
            dir.each(|name, is_dir| {
                if names.len() < MAX_NAMES {
                    names.push((name.to_string_lossy().into_owned(), is_dir));
                }
                Ok(())
            })?;
            names.sort();
            Ok(Found::Folder(names))
        }
        FileType::RegularFile => {
            let file = rustix::fs::open(again, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
            Ok(Found::File(File::from(file), u64::try_from(stat.st_size).unwrap_or(0)))
        }
        // Pipes and devices would hold or do something.
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Reads a piece when the one before it is on its way: a reader that stands still holds a descriptor, and no
/// thread.
fn send(file: File, length: u64) -> Response {
    let pieces = futures::stream::unfold((file, length), |(mut file, left)| async move {
        if left == 0 {
            return None;
        }
        let read = move || {
            let mut piece = Vec::with_capacity(PIECE);
            (&mut file).take(left.min(PIECE as u64)).read_to_end(&mut piece).map(|_| (file, piece))
        };
        let (file, piece) = match blocking(read).await.and_then(|read| read) {
            Ok((_, piece)) if piece.is_empty() => return None,
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "a log of the node could not be read to its end");
                return None;
            }
        };
        let left = left.saturating_sub(piece.len() as u64);
        Some((Ok(Bytes::from(piece)), (file, left)))
    });
    Response::new(transport::stream(pieces))
}

fn listing(names: &[(String, bool)]) -> String {
    let line = |(name, is_dir): &(String, bool)| {
        let slash = if *is_dir { "/" } else { "" };
        format!("<a href=\"{}{slash}\">{}{slash}</a>\n", href(name), html(name))
    };
    format!("<pre>\n{}</pre>\n", names.iter().map(line).collect::<String>())
}

fn href(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let byte = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    name.bytes().map(byte).collect()
}

fn html(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::os::unix::fs::symlink;

    async fn get(root: &Path, path: &str) -> (u16, String) {
        let response = answer(root, path).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.expect("read").to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn folders_are_listed_and_files_sent() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("log");
        std::fs::create_dir_all(root.join("pods")).expect("made");
        std::fs::write(root.join("pods/a.log"), "x".repeat(200_000)).expect("written");
        std::fs::write(root.join("<b>&\"%"), "1").expect("written");
        symlink("pods/a.log", root.join("within")).expect("linked");
        let want = "<pre>\n<a href=\"%3Cb%3E%26%22%25\">&lt;b&gt;&amp;&#34;%</a>\n<a href=\"pods/\">pods/</a>\n\
                    <a href=\"within\">within</a>\n</pre>\n";
        assert_eq!(get(&root, "").await, (200, want.to_owned()));
        assert_eq!(get(&root, "pods/a.log").await, (200, "x".repeat(200_000)));
        assert_eq!(get(&root, "within").await.1.len(), 200_000);
    }

    #[tokio::test]
    async fn nothing_leads_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("log");
        std::fs::create_dir_all(&root).expect("made");
        std::fs::write(dir.path().join("secret"), "s").expect("written");
        symlink("../secret", root.join("up")).expect("linked");
        symlink(dir.path().join("secret"), root.join("absolute")).expect("linked");
        symlink("/proc/self/root", root.join("magic")).expect("linked");
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .expect("made");
        for path in ["up", "absolute", "../secret", "a/../../secret", "magic/etc/passwd", "pipe", "none", "/etc/passwd"]
        {
            assert_eq!(get(&root, path).await.0, 404, "{path}");
        }
    }

    #[tokio::test]
    async fn readers_that_stand_still_hold_no_thread() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("long"), "x".repeat(4 << 20)).expect("written");
        // As many as there may be blocking threads.
        let mut bodies = Vec::new();
        for _ in 0..512 {
            let mut body = answer(dir.path(), "long").await.into_body();
            let first = body.frame().await.expect("a frame").expect("read").into_data().expect("data");
            assert_eq!(first.len(), PIECE);
            bodies.push(body);
        }
        assert_eq!(blocking(|| 1).await.expect("a thread is free"), 1);
        let rest = bodies.remove(0).collect().await.expect("read").to_bytes();
        assert_eq!(rest.len(), (4 << 20) - PIECE);
    }
}
