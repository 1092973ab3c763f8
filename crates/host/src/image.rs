//! Builds container images as OCI archives, without a registry and without other programs.

use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A blob named by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub media_type: &'static str,
    /// `sha256:<hex>`.
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&bytes), bytes }
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// `sha256:<hex>` of `bytes`.
pub fn digest(bytes: &[u8]) -> String {
    let mut out = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        out.push_str(&format!("{byte:02x}"));
    }
    out
}

/// A file of a layer that is made in memory.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Relative to the image's root.
    pub path: &'a str,
    pub mode: u32,
    pub content: &'a [u8],
}

/// One layer: a compressed tar with the digest of its uncompressed form.
#[derive(Clone, Debug)]
pub struct Layer {
    blob: Blob,
    diff_id: String,
}

impl Layer {
    /// A layer of files in memory, owned by root.
    pub fn from_files(files: &[File<'_>]) -> io::Result<Self> {
        let mut tar = tar::Builder::new(Vec::new());
        for file in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(file.content.len() as u64);
            header.set_mode(file.mode);
            header.set_entry_type(tar::EntryType::Regular);
            tar.append_data(&mut header, file.path, file.content)?;
        }
        Self::compress(tar.into_inner()?)
    }

    /// A layer of everything below `folder`; symbolic links stay links.
    pub fn from_folder(folder: &Path) -> io::Result<Self> {
        let mut tar = tar::Builder::new(Vec::new());
        tar.follow_symlinks(false);
        tar.append_dir_all(".", folder)?;
        Self::compress(tar.into_inner()?)
    }

    fn compress(tar: Vec<u8>) -> io::Result<Self> {
        let diff_id = digest(&tar);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&tar)?;
        let blob = Blob::new("application/vnd.oci.image.layer.v1.tar+gzip", gzip.finish()?);
        Ok(Self { blob, diff_id })
    }
}

/// What a container of the image does unless told otherwise.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<String>,
    pub user: String,
    pub working_dir: String,
}

/// An image of this machine's architecture.
#[derive(Clone, Debug)]
pub struct Image {
    /// Repository and tag.
    pub name: String,
    pub manifest: Blob,
    pub config: Blob,
    pub layers: Vec<Blob>,
}

/// The architecture's name as images spell it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Image {
    /// Puts layers and settings together. The result depends on nothing else, so building twice
    /// gives the same digests.
    pub fn build(name: &str, settings: &Settings, layers: Vec<Layer>) -> io::Result<Self> {
        let mut process = json!({ "Env": settings.env });
        let mut set = |key: &str, value: Value| process[key] = value;
        if !settings.entrypoint.is_empty() {
            set("Entrypoint", json!(settings.entrypoint));
        }
        if !settings.command.is_empty() {
            set("Cmd", json!(settings.command));
        }
        if !settings.user.is_empty() {
            set("User", json!(settings.user));
        }
        if !settings.working_dir.is_empty() {
            set("WorkingDir", json!(settings.working_dir));
        }
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": process,
            "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|l| &l.diff_id).collect::<Vec<_>>() },
        });
        let config = Blob::new("application/vnd.oci.image.config.v1+json", serde_json::to_vec(&config)?);
        let layers: Vec<Blob> = layers.into_iter().map(|l| l.blob).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        });
        let manifest = Blob::new("application/vnd.oci.image.manifest.v1+json", serde_json::to_vec(&manifest)?);
        Ok(Self { name: name.to_owned(), manifest, config, layers })
    }

    /// The image as an OCI archive (a tar of an image layout), which runtimes import.
    pub fn archive(&self) -> io::Result<Vec<u8>> {
        let mut descriptor = self.manifest.descriptor();
        descriptor["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
        });
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor] });
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |path: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, bytes)
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", &serde_json::to_vec(&index)?)?;
        for blob in [&self.manifest, &self.config].into_iter().chain(&self.layers) {
            let hex = blob.digest.strip_prefix("sha256:").unwrap_or(&blob.digest);
            add(&format!("blobs/sha256/{hex}"), &blob.bytes)?;
        }
        tar.into_inner()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn building_twice_gives_the_same_digest_and_a_whole_archive() {
        let build = || {
            let layer = Layer::from_files(&[File { path: "bin/x", mode: 0o755, content: b"x" }]).expect("a layer");
            let settings = Settings { entrypoint: vec!["/bin/x".into()], ..Settings::default() };
            Image::build("example.invalid/x:1", &settings, vec![layer]).expect("an image")
        };
        assert_eq!(build().manifest.digest, build().manifest.digest);
        let archive = build().archive().expect("an archive");
        let mut tar = tar::Archive::new(archive.as_slice());
        let names: Vec<String> = tar
            .entries()
            .expect("entries")
            .map(|e| e.expect("an entry").path().expect("a path").display().to_string())
            .collect();
        assert_eq!(names.len(), 5);
        assert_eq!(&names[..2], ["oci-layout", "index.json"]);
    }
}
