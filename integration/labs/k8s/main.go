// One binary that is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and a kubelet over a fake container
// runtime (kubemark's hollow node: the real kubelet code, with its admission, status loop and graceful deletion), and
// that makes the keys these need. It decides nothing: every flag comes from the Rust side of the lab.
package main

import (
	"fmt"
	"io"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	hollow "k8s.io/kubernetes/cmd/kubemark/app"
)

const usage = "usage: k8s-lab keys DIR [FILE=NAME=GROUP,GROUP...] | etcd|kube-apiserver|kube-controller-manager|kube-scheduler|hollow-node FLAGS"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	tether()
	os.Args = os.Args[1:]
	switch os.Args[0] {
	case "keys":
		if len(os.Args) < 2 {
			fmt.Fprintln(os.Stderr, usage)
			os.Exit(2)
		}
		if err := writeKeys(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "keys:", err)
			os.Exit(1)
		}
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllers.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "hollow-node":
		os.Exit(cli.Run(hollow.NewHollowNodeCommand()))
	default:
		fmt.Fprintln(os.Stderr, "unknown part", os.Args[0])
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}

// tether makes this process end when its standard input does, that is when the process that started the lab is gone,
// however it went.
func tether() {
	if os.Getenv("GPU_BRIDGE_LAB_TETHER") == "" {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}
