// SPDX-License-Identifier: Apache-2.0

package kit

// Web is two pods, each of which answers with its name, behind the Service web. It needs [Cluster.ImportTestImage].
const Web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "` + TestImage + `", imagePullPolicy: Never, args: [serve], ports: [{containerPort: 8080}],
         readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}}
` + WebService

// WebService is the Service web, port 80, of the pods that are labelled app: web.
const WebService = `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// Reader is a service account that may get and list pods, and nothing else.
const Reader = `---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`
