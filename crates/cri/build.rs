//! Compiles the protocol descriptions without a system protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "proto/cri.proto",
        "proto/containerd_containers.proto",
        "proto/containerd_content.proto",
        "proto/containerd_events.proto",
        "proto/containerd_snapshots.proto",
        "proto/containerd_tasks.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
