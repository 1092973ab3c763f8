//! Flags for images: how they are fetched, and who may use them.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use kubelet::image::verify::Verification;

/// How images are fetched, and who may use them.
#[derive(Args, Clone, Debug)]
pub struct Images {
    /// Fetch one image at a time.
    #[arg(long)]
    serialize_image_pulls: bool,
    /// Images fetched at a time.
    #[arg(long, default_value_t = 5, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_parallel_image_pulls: u32,
    /// Plugins that know credentials for images: a CredentialProviderConfig, or a folder of them.
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// The folder of those plugins.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// Which images a pod may use only if it could fetch them: NeverVerify,
    /// NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify.
    #[arg(long, default_value = "NeverVerifyPreloadedImages", value_name = "POLICY")]
    image_pull_credentials_verification_policy: String,
    /// The images that NeverVerifyAllowlistedImages means (comma separated; `/*` at the end: all below).
    #[arg(long, value_name = "IMAGE", value_delimiter = ',')]
    preloaded_images_verification_allowlist: Vec<String>,
}

impl Images {
    /// As the kubelet takes them.
    pub fn options(&self) -> Result<kubelet::ImageOptions> {
        let listed = &self.preloaded_images_verification_allowlist;
        let policy = Verification::named(&self.image_pull_credentials_verification_policy, listed);
        let verification = match policy {
            Ok(policy) => policy,
            Err(why) => bail!("--image-pull-credentials-verification-policy: {why}"),
        };
        let parallel = if self.serialize_image_pulls { 1 } else { self.max_parallel_image_pulls as usize };
        let config = self.image_credential_provider_config.clone();
        let providers = config.zip(self.image_credential_provider_bin_dir.clone());
        Ok(kubelet::ImageOptions { parallel, verification, providers })
    }
}
