//! Flags for images: how they are fetched, who may use them, when they go.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use kubelet::config::FileConfig;
use kubelet::image::collect::Policy;
use kubelet::image::rate::Rate;
use kubelet::image::verify::Verification;

/// How images are fetched, who may use them, when they go.
#[derive(Args, Clone, Debug)]
pub struct Images {
    /// Fetch one image at a time.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "TRUE")]
    serialize_image_pulls: Option<bool>,
    /// Images fetched at a time [default: 5].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_parallel_image_pulls: Option<u32>,
    /// Images fetched in a second; 0 is any number [default: 5, of `up` 0].
    #[arg(long, value_name = "COUNT")]
    registry_qps: Option<u32>,
    /// Images fetched at once after a pause, where there is a limit [default: 10].
    #[arg(long, value_name = "COUNT")]
    registry_burst: Option<u32>,
    /// Plugins that know credentials for images: a CredentialProviderConfig, or a folder of them.
    #[arg(long, value_name = "PATH", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// The folder of those plugins.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// Which images a pod may use only if it could fetch them: NeverVerify,
    /// NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify
    /// [default: NeverVerifyPreloadedImages].
    #[arg(long, value_name = "POLICY")]
    image_pull_credentials_verification_policy: Option<String>,
    /// The images that NeverVerifyAllowlistedImages means (comma separated; `/*` at the end: all below).
    #[arg(long, value_name = "IMAGE", value_delimiter = ',')]
    preloaded_images_verification_allowlist: Vec<String>,
    /// From so many percent of their disk in use on, images that nobody uses are removed; at 100 only when the
    /// node is short of disk [default: 85, of `up` 100].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    image_gc_high_threshold: Option<u64>,
    /// Until so many percent are in use [default: 80].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    image_gc_low_threshold: Option<u64>,
    /// An image that was found less long ago stays [default: 2m].
    #[arg(long, value_name = "DURATION", value_parser = kubelet::config::duration)]
    minimum_image_ttl_duration: Option<Duration>,
}

impl Images {
    /// As the kubelet takes them: what a flag does not say, `file` does, and else `defaults`.
    pub fn options(&self, file: &FileConfig, defaults: kubelet::ImageOptions) -> Result<kubelet::ImageOptions> {
        let usual = defaults.collection;
        let listed = match self.preloaded_images_verification_allowlist.as_slice() {
            [] => &file.image_verification_allowlist,
            given => given,
        };
        let named = &self.image_pull_credentials_verification_policy;
        let verification = match named.as_ref().or(file.image_verification_policy.as_ref()) {
            None => defaults.verification,
            Some(name) => match Verification::named(name, listed) {
                Ok(policy) => policy,
                Err(why) => bail!("--image-pull-credentials-verification-policy: {why}"),
            },
        };
        let parallel = match (self.serialize_image_pulls, self.max_parallel_image_pulls) {
            (Some(true), _) => 1,
            (_, Some(count)) => count as usize,
            (Some(false), None) => {
                file.max_parallel_image_pulls.filter(|n| *n > 1).map_or(defaults.parallel, |n| n as usize)
            }
            (None, None) => file.max_parallel_image_pulls.map_or(defaults.parallel, |n| n as usize),
        };
        let config = self.image_credential_provider_config.clone();
        let providers = config.zip(self.image_credential_provider_bin_dir.clone());
        let collection = Policy {
            high: self.image_gc_high_threshold.or(file.image_gc_high_threshold).unwrap_or(usual.high),
            low: self.image_gc_low_threshold.or(file.image_gc_low_threshold).unwrap_or(usual.low),
            min_age: self.minimum_image_ttl_duration.or(file.image_minimum_age).unwrap_or(usual.min_age),
            max_age: file.image_maximum_age,
        };
        collection.check().map_err(anyhow::Error::msg)?;
        let per_second = self.registry_qps.or(file.registry_pull_qps);
        let rate = Rate {
            per_second: per_second.or(defaults.rate.map(|r| r.per_second)).unwrap_or(0),
            burst: self.registry_burst.or(file.registry_burst).unwrap_or(Rate::USUAL.burst),
        };
        Ok(kubelet::ImageOptions { parallel, verification, providers, collection, rate: rate.limited() })
    }
}
