package main

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	namespaces  = 20
	nodes       = 200
	deployments = 300
	replicas    = 10 // of a ReplicaSet: they share its template, and differ in what runs
)

// podIdentity is that of a replica: the name of its ReplicaSet, and a suffix.
func podIdentity(number int, c chance) identity {
	set := number / replicas
	name := fmt.Sprintf("app-%d-%s-%s%d", set%deployments, c.common(set).hex(10), c.suffix(), number)
	return identity{fmt.Sprintf("team-%d", set%namespaces), name}
}

// pod is one of a deployment, as kubelet and the controllers leave it: about 4.5 KB as JSON. What stands in the template is that of
// its ReplicaSet; ids, addresses, node and times are its own.
func pod(id identity, number int, c chance) any {
	set := number / replicas
	template := c.common(set)
	app, hash := fmt.Sprintf("app-%d", set%deployments), template.hex(10)
	meta := id.meta(c)
	meta.CreationTimestamp = metav1.NewTime(template.moment().Add(time.Duration(c.IntN(120)) * time.Second))
	meta.GenerateName = app + "-" + hash + "-"
	meta.Labels = map[string]string{"app": app, "pod-template-hash": hash, "tier": []string{"web", "work"}[set%2]}
	meta.Annotations["checksum/config"] = template.hex(64)
	meta.OwnerReferences = []metav1.OwnerReference{owner("apps/v1", "ReplicaSet", app+"-"+hash, template.uid())}
	containers := []corev1.Container{container(0, template), container(1, template)}
	node := c.IntN(nodes)
	status := podStatus(meta.CreationTimestamp, node, containers, template, c)
	meta.ManagedFields = []metav1.ManagedFieldsEntry{
		managed("kube-controller-manager", "", meta.CreationTimestamp, podFields),
		managed("kubelet", "status", *status.StartTime, statusFields),
	}
	return &corev1.Pod{ObjectMeta: meta, Spec: podSpec(app, node, containers), Status: status}
}

func owner(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes, BlockOwnerDeletion: &yes,
	}
}

func container(position int, c chance) corev1.Container {
	made := corev1.Container{
		Name:  fmt.Sprintf("c%d", position),
		Image: fmt.Sprintf("registry.example/app:%d.%d.%d", c.IntN(5), c.IntN(20), c.IntN(50)),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse(fmt.Sprintf("%dm", 50+10*c.IntN(40))),
				corev1.ResourceMemory: resource.MustParse(fmt.Sprintf("%dMi", 64*(1+c.IntN(8)))),
			},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(fmt.Sprintf("%dMi", 512*(1+c.IntN(4))))},
		},
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		ImagePullPolicy:          corev1.PullIfNotPresent,
	}
	for number := range 4 {
		made.Env = append(made.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", number), Value: c.hex(12)})
	}
	for number := range 2 {
		made.VolumeMounts = append(made.VolumeMounts, corev1.VolumeMount{
			Name: fmt.Sprintf("v%d", number), MountPath: fmt.Sprintf("/etc/v%d", number), ReadOnly: true,
		})
	}
	if position == 0 {
		made.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
	}
	return made
}

func podSpec(app string, node int, containers []corev1.Container) corev1.PodSpec {
	grace, mode, links := int64(30), int32(420), true
	spec := corev1.PodSpec{
		Containers:                    containers,
		RestartPolicy:                 corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: &grace,
		DNSPolicy:                     corev1.DNSClusterFirst,
		ServiceAccountName:            "default",
		DeprecatedServiceAccount:      "default",
		NodeName:                      fmt.Sprintf("node-%d", node),
		SecurityContext:               &corev1.PodSecurityContext{},
		SchedulerName:                 corev1.DefaultSchedulerName,
		EnableServiceLinks:            &links,
	}
	for number := range 2 {
		spec.Volumes = append(spec.Volumes, corev1.Volume{
			Name: fmt.Sprintf("v%d", number),
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprintf("%s-%d", app, number)}, DefaultMode: &mode,
			}},
		})
	}
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		seconds := int64(300)
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
		})
	}
	return spec
}

func podStatus(created metav1.Time, node int, containers []corev1.Container, template, c chance) corev1.PodStatus {
	host, ip := fmt.Sprintf("10.255.0.%d", 1+node), c.address()
	started := metav1.NewTime(created.Add(time.Duration(1+c.IntN(30)) * time.Second))
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		StartTime: &created, QOSClass: corev1.PodQOSBurstable,
	}
	conditions := []corev1.PodConditionType{
		corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled,
	}
	for number, condition := range conditions {
		since := []metav1.Time{created, started, started, created}[number]
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: since,
		})
	}
	for _, container := range containers {
		yes := true
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Ready: true, RestartCount: int32(c.IntN(3)), Image: container.Image, Started: &yes,
			ImageID:     "registry.example/app@sha256:" + template.hex(64),
			ContainerID: "containerd://" + c.hex(64),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		})
	}
	return status
}

func managed(manager, subresource string, when metav1.Time, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &when,
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(fields)}, Subresource: subresource,
	}
}

// What the two managers of a pod own: the same for all pods of this shape, as in a cluster.
const (
	podFields = `{"f:metadata":{"f:annotations":{".":{},"f:checksum/config":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},` +
		`"f:pod-template-hash":{},"f:tier":{}},"f:ownerReferences":{}},"f:spec":{"f:containers":{"k:{\"name\":\"c0\"}":{".":{},"f:env":{},` +
		`"f:image":{},"f:name":{},"f:ports":{},"f:resources":{}},"k:{\"name\":\"c1\"}":{".":{},"f:env":{},"f:image":{},"f:name":{}}},` +
		`"f:restartPolicy":{},"f:volumes":{}}}`
	statusFields = `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:status":{}}},` +
		`"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:startTime":{}}}`
)
