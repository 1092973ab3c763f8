//! The manifests of the tests, as a user would write them.

/// A Deployment of nginx with a readiness probe, and a NodePort Service for it.
pub fn web(name: &str, image: &str, replicas: u32, node_port: u16) -> String {
    format!(
        r#"apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
      - name: nginx
        image: {image}
        ports:
        - {{name: http, containerPort: 80}}
        readinessProbe:
          httpGet: {{path: /, port: http}}
          periodSeconds: 1
        lifecycle:
          preStop:
            sleep: {{seconds: 2}}
        resources:
          requests: {{cpu: 10m, memory: 16Mi}}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  type: NodePort
  selector: {{app: {name}}}
  ports:
  - {{name: http, port: 80, targetPort: http, nodePort: {node_port}}}
"#
    )
}

/// A bare pod that runs a shell script.
pub fn script(name: &str, image: &str, script: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    command: ["sh", "-c", {script:?}]
"#
    )
}
